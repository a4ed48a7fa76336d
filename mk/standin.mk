# The stand-in for Apple's frameworks: a shared library that the Metal driver is tested on.
# All of it is position-independent code, the emulator and its kernels too, so it has objects of
# its own.

STANDIN     := $(BUILD)/tests/libstandin-metal.so
STANDIN_SRC := $(sort $(wildcard tests/standin/*.c)) src/base/error.c src/base/mem.c src/base/pool.c \
               src/exec/gpu/kernels.c $(if $(STANDIN_NO_MSL),,tests/msl/msl.c) \
               $(foreach f,fiber machine shadow,src/exec/gpu/simt/$(f).c)
STANDIN_CXX := src/exec/gpu/simt/kernels_check.cpp
STANDIN_OBJ := $(STANDIN_SRC:%.c=$(BUILD)/standin/%.o) $(STANDIN_CXX:%.cpp=$(BUILD)/standin/%.o) \
               $(BUILD)/standin/metal/source.o \
               $(if $(STANDIN_NO_MSL),,$(filter $(BUILD)/msl/%,$(MSL_OBJ)))
STANDIN_PIC := -fPIC $(if $(STANDIN_NO_MSL),-DSTANDIN_NO_MSL)

$(BUILD)/standin/%.o: %.c $(BUILD)/flags.txt
	@mkdir -p $(@D)
	$(Q)$(COMPILE) $(STANDIN_PIC) -Itests/standin -Itests/msl $(DIAG) -MMD -MP -c $< -o $@
$(BUILD)/standin/%.o: %.cpp $(BUILD)/cxx-flags.txt
	@mkdir -p $(@D)
	$(Q)$(CXX_COMPILE) $(STANDIN_PIC) $(CXX_WARN) -MMD -MP -c $< -o $@
$(BUILD)/standin/metal/source.o: $(BUILD)/metal/source.c $(BUILD)/flags.txt
	@mkdir -p $(@D)
	$(Q)$(COMPILE) $(STANDIN_PIC) $(DIAG) -MMD -MP -c $< -o $@
$(STANDIN): $(STANDIN_OBJ)
	@mkdir -p $(@D)
	$(Q)$(LINK) -shared $(if $(SAN),,-Wl,-z,defs) -o $@ $^ -lm -lpthread $(if $(filter Linux,$(OS)),-ldl)

# The tests that open it.
STANDIN_TESTS := test_standin test_metal test_metal_rung test_metal_model
$(STANDIN_TESTS:%=$(BUILD)/tests/%): | $(STANDIN)
$(foreach t,$(STANDIN_TESTS),$(eval TEST_FLAGS_$(t) := -Itests/standin -DSTANDIN='"$(STANDIN)"' \
    $(if $(STANDIN_NO_MSL),-DSTANDIN_NO_MSL)))

-include $(patsubst %.o,%.d,$(wildcard $(STANDIN_OBJ)))

# By hand: whole golden texts at every rung, every barrier and a hundred other mutations, every
# kernel through the driver.
check-metal: $(BUILD)/tests/test_metal_model $(BUILD)/calla-gpu-check ## the Metal driver on the stand-in, in full (an hour)
	CALLA_TEST_METAL=all CALLA_MUTATIONS=barriers $(BUILD)/tests/test_metal_model
	CALLA_MUTATIONS=200 CALLA_SEED=2 $(BUILD)/tests/test_metal_model
	$(foreach r,0 1 2 3,CALLA_METAL_FRAMEWORK=$(STANDIN) CALLA_STANDIN=mode=msl,seed=$r \
	    $(BUILD)/calla-gpu-check --device metal --rung $r --draws 1 &&) true

# The same driver, trampoline and kernels as arm64 code under qemu-user: the calling convention of
# the Mac (a struct of 24 bytes goes by reference, doubles come in registers of their own).
ARM_SRC := $(foreach f,error file mem hash pool,src/base/$(f).c) \
           $(foreach f,kernels recorder mm_check ops_gemm ops_attn,src/exec/gpu/$(f).c) \
           $(sort $(wildcard src/exec/gpu/metal/*.c src/kernels/*.c))
ARM_OBJ := $(ARM_SRC:%.c=$(BUILD)/%.o) $(BUILD)/metal/source.o
$(BUILD)/standin/arm/%: tests/unit/%.c $(ARM_OBJ) $(STANDIN)
	@mkdir -p $(@D)
	$(Q)$(TEST_CC) -Itests/standin/arm $(TEST_FLAGS_$*) -MF $@.d $< -o $@ $(SAN) $(LDFLAGS) $(ARM_OBJ) \
	    -lm -lpthread -ldl
check-metal-arm: ## the Metal driver as arm64 code, on the stand-in, under qemu-user
	@$(MAKE) --no-print-directory BUILD=build-aarch64 CC='$(NEON_CC)' LIB_LDLIBS= LIB_CPPFLAGS= STANDIN_NO_MSL=1 \
	    build-aarch64/standin/arm/test_standin build-aarch64/standin/arm/test_metal
	$(NEON_RUN) -L $(ARM_ROOT) build-aarch64/standin/arm/test_standin
	$(NEON_RUN) -L $(ARM_ROOT) build-aarch64/standin/arm/test_metal
ARM_ROOT ?= /usr/aarch64-linux-gnu
.PHONY: check-metal check-metal-arm
