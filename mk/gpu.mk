# The SIMT emulator's kernels (C++17, no C++ library needed) and the check of GPU kernels.
#   CXX         the C++ compiler; by default the one that belongs to CC
#   GPU_ARGS    arguments for check-gpu

ifneq ($(filter default undefined,$(origin CXX)),)
CXX := $(if $(findstring clang,$(CC)),$(subst clang,clang++,$(CC)),$(if \
            $(findstring gcc,$(CC)),$(subst gcc,g++,$(CC)),c++))
endif
CXX_FLAGS := -std=c++17 -ffp-contract=off -fno-math-errno -fno-trapping-math -fvisibility=hidden \
             -fno-exceptions -fno-rtti -fno-threadsafe-statics \
             $(if $(filter x86_64,$(ARCH)),-mavx2 -mfma)
# -Wno-maybe-uninitialized: GCC does not follow arrays of registers through unrolled loops.
CXX_WARN  := -Wall -Wextra -Wdouble-promotion -Wundef -Wvla \
             $(if $(IS_CLANG),,-Wno-maybe-uninitialized) $(if $(filter 1,$(WERROR)),-Werror)
# These two need the C++ library.
CXX_SAN   := $(if $(SAN),-fno-sanitize=vptr $(if $(IS_CLANG),-fno-sanitize=function))
CXX_COMPILE := $(CXX) -Iinclude -Isrc $(CXX_FLAGS) $(OPT) $(SAN) $(CXX_SAN) $(CPPFLAGS) $(CXXFLAGS)

SIMT_SRC := $(sort $(wildcard src/exec/gpu/simt/*.cpp))
SIMT_OBJ := $(SIMT_SRC:%.cpp=$(BUILD)/%.o)

$(BUILD)/cxx-flags.txt: FORCE
	$(call record,$(CXX_COMPILE))
$(BUILD)/%.o: %.cpp $(BUILD)/cxx-flags.txt
	@mkdir -p $(@D)
	$(Q)$(CXX_COMPILE) $(CXX_WARN) $(EXTRA) -MMD -MP -c $< -o $@

# The checks (src/check) are part of the program as well; tests/gpu has the emulator's own.
CHECK_OBJ      := $(CHECK_SRC:%.c=$(BUILD)/%.o)
GPU_CHECK_SRC  := $(sort $(wildcard tests/gpu/*.c))
GPU_CHECK_CXX  := $(sort $(wildcard tests/gpu/*.cpp))
GPU_CHECK_OBJ  := $(GPU_CHECK_SRC:%.c=$(BUILD)/%.o) $(GPU_CHECK_CXX:%.cpp=$(BUILD)/%.o)
$(GPU_CHECK_OBJ): EXTRA := -Itests -Itests/msl
$(BUILD)/calla-gpu-check: $(GPU_CHECK_OBJ) $(CHECK_OBJ) $(MSL_OBJ) $(BUILD)/libcalla.a
	$(Q)$(LINK) -o $@ $^ $(LINK_LIBS)

# Metal's texts: all cases once; on the other rungs those that differ.
gpu_tests = 'gpu=$(BUILD)/calla-gpu-check' \
            $(if $(SAN),,'gpu/metal=$(BUILD)/calla-gpu-check --device msl --draws 1') \
            $(foreach r,$(if $(SAN),3,1 2 3),'gpu/metal-$r=$(BUILD)/calla-gpu-check --device msl --rung $r --draws 1 --only gemm,moe,attn_scan')
check-gpu: $(BUILD)/calla-gpu-check ## GPU kernels against their references; GPU_ARGS='--device cuda --time'
	$(BUILD)/calla-gpu-check $(GPU_ARGS)

.PHONY: check-gpu
-include $(patsubst %.o,%.d,$(wildcard $(SIMT_OBJ) $(GPU_CHECK_OBJ)))
