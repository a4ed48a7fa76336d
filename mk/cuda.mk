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
$(BUILD)/cuda/image_%.o: $(BUILD)/cuda/image_%.c $(BUILD)/flags.txt
	$(Q)$(COMPILE) $(DIAG) -MMD -MP -c $< -o $@

-include $(wildcard $(BUILD)/cuda/*.d)
.PRECIOUS: $(BUILD)/cuda/%.fatbin $(BUILD)/cuda/image_%.c

# The test of our declarations, where CUDA's own are.
ifneq ($(NVCC),)
CUDA_HOME := $(patsubst %/bin/,%,$(dir $(NVCC)))
TEST_FLAGS_test_cuda_abi := -isystem $(CUDA_HOME)/include -DCUDA_STUBS='"$(CUDA_HOME)/lib64/stubs/"'
endif
