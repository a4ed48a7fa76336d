# The CUDA kernels: one fat binary for each family of kernels (src/kernels/kernels.cu), as C arrays.
# Without nvcc the arrays are empty, and the CUDA driver says that this build has no kernels.
#   NVCC=...   the compiler; NVCC= builds without CUDA kernels
#   CUDA_GEN   the targets

ifeq ($(origin NVCC),undefined)
NVCC := $(shell command -v nvcc 2>/dev/null || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
endif
CUDA_GEN ?= -gencode=arch=compute_80,code=[sm_80,compute_80] -gencode=arch=compute_90a,code=sm_90a
# No contraction, flushed denormals, correctly rounded division and root: the bits of the emulator.
CUDA_FLAGS := -std=c++17 -O3 -fmad=false -ftz=true -prec-div=true -prec-sqrt=true -Isrc \
              -diag-suppress 177 -Xptxas -warn-spills
CUDA_FAMILIES := 1 2 3 4 5
CUDA_OBJ := $(CUDA_FAMILIES:%=$(BUILD)/cuda/image_%.o)

$(BUILD)/cuda/nvcc.txt: FORCE
	$(call record,$(NVCC) $(CUDA_GEN) $(CUDA_FLAGS))

$(BUILD)/cuda/%.fatbin: src/kernels/kernels.cu $(BUILD)/cuda/nvcc.txt
	@mkdir -p $(@D)
	$(Q)$(NVCC) $(CUDA_GEN) $(CUDA_FLAGS) -DKX_FAMILY=$* -MMD -MP -MF $(@:.fatbin=.d) -fatbin $< -o $@

$(BUILD)/cuda/image_%.c: $(if $(NVCC),$(BUILD)/cuda/%.fatbin) tools/embed.sh $(BUILD)/cuda/nvcc.txt
	@mkdir -p $(@D)
	@sh tools/embed.sh cuda_image_$* exec/gpu/cuda/image.h $(filter %.fatbin,$^) >$@.tmp && mv $@.tmp $@
$(BUILD)/cuda/%.o: $(BUILD)/cuda/%.c $(BUILD)/flags.txt
	$(Q)$(COMPILE) $(DIAG) $(EXTRA) -MMD -MP -c $< -o $@

# Ceilings of a GPU (bench/gpu): bench-gpu.
$(BUILD)/cuda/peaks.fatbin: bench/gpu/peaks.cu $(BUILD)/cuda/nvcc.txt
	@mkdir -p $(@D)
	$(Q)$(NVCC) $(CUDA_GEN) $(CUDA_FLAGS) -MMD -MP -MF $(@:.fatbin=.d) -fatbin $< -o $@
$(BUILD)/cuda/peaks.c: $(if $(NVCC),$(BUILD)/cuda/peaks.fatbin) tools/embed.sh $(BUILD)/cuda/nvcc.txt
	@mkdir -p $(@D)
	@sh tools/embed.sh bench_peaks peaks.h $(filter %.fatbin,$^) >$@.tmp && mv $@.tmp $@
$(BUILD)/bench/gpu/bench_gpu.o $(BUILD)/cuda/peaks.o: EXTRA := -Ibench/gpu
$(BUILD)/bench-gpu: $(BUILD)/bench/gpu/bench_gpu.o $(BUILD)/cuda/peaks.o $(BUILD)/libcalla.a
	$(Q)$(LINK) -o $@ $^ $(LINK_LIBS)
bench-gpu: $(BUILD)/bench-gpu ## what an NVIDIA GPU gives at most
	$(BUILD)/bench-gpu

-include $(wildcard $(BUILD)/cuda/*.d)
.PHONY: bench-gpu gpu-bundle
.PRECIOUS: $(BUILD)/cuda/%.fatbin $(BUILD)/cuda/image_%.c

# For a machine with a GPU but without compilers and our libraries: run build/gpu-bundle/run.sh there.
gpu-bundle: $(BUILD)/calla $(BUILD)/calla-gpu-check $(BUILD)/bench-gpu ## build/gpu-bundle: programs, libraries and model for a GPU machine
	@sh tools/gpu-bundle.sh $(BUILD) $(BUILD)/gpu-bundle

# The test of our declarations, where CUDA's own are.
ifneq ($(NVCC),)
CUDA_HOME := $(patsubst %/bin/,%,$(dir $(NVCC)))
TEST_FLAGS_test_cuda_abi := -isystem $(CUDA_HOME)/include -DCUDA_STUBS='"$(CUDA_HOME)/lib64/stubs/"'
endif
