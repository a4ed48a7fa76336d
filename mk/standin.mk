# The stand-in for Apple's frameworks: a shared library that the Metal driver is tested on.
# All of it is position-independent code, the emulator and its kernels too, so it has objects of
# its own.

STANDIN     := $(BUILD)/tests/libstandin-metal.so
STANDIN_SRC := $(sort $(wildcard tests/standin/*.c)) src/base/error.c src/base/mem.c src/base/pool.c \
               src/exec/gpu/kernels.c tests/msl/msl.c \
               $(foreach f,fiber machine shadow,src/exec/gpu/simt/$(f).c)
STANDIN_CXX := src/exec/gpu/simt/kernels_check.cpp
STANDIN_OBJ := $(STANDIN_SRC:%.c=$(BUILD)/standin/%.o) $(STANDIN_CXX:%.cpp=$(BUILD)/standin/%.o) \
               $(BUILD)/standin/metal/source.o $(filter $(BUILD)/msl/%,$(MSL_OBJ))
STANDIN_PIC := -fPIC

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
STANDIN_TESTS := test_standin test_metal test_metal_rung
$(STANDIN_TESTS:%=$(BUILD)/tests/%): | $(STANDIN)
$(foreach t,$(STANDIN_TESTS),$(eval TEST_FLAGS_$(t) := -Itests/standin -DSTANDIN='"$(STANDIN)"'))

-include $(patsubst %.o,%.d,$(wildcard $(STANDIN_OBJ)))
