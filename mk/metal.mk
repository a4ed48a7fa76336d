# The Metal kernels: one text for each family (tools/metal-flatten.sh), in build/metal and as C
# arrays in the library; and what a machine without Metal can say about them (tests/msl).

METAL_NAMES := basic gemv gemm gdn attn
METAL_TEXT  := $(METAL_NAMES:%=$(BUILD)/metal/%.metal)
METAL_FROM  := src/kernels/kernels.metal $(wildcard src/kernels/*.h) tools/metal-flatten.sh
# The place of a name in the list above.
metal_number = $(words $(shell echo '$(METAL_NAMES)' | sed 's/$1.*/x/'))

$(BUILD)/metal/%.metal: $(METAL_FROM)
	@mkdir -p $(@D)
	@sh tools/metal-flatten.sh $(call metal_number,$*) $< >$@.tmp
	@if cmp -s $@.tmp $@; then touch $@; else mv $@.tmp $@; fi; rm -f $@.tmp
$(BUILD)/metal/source.c: $(METAL_TEXT) tools/metal-source.sh
	@sh tools/metal-source.sh $(METAL_TEXT) >$@.tmp && mv $@.tmp $@
$(BUILD)/metal/source.o: $(BUILD)/metal/source.c $(BUILD)/flags.txt
	$(Q)$(COMPILE) $(DIAG) -MMD -MP -c $< -o $@
.SECONDARY: $(METAL_TEXT)
-include $(wildcard $(BUILD)/metal/source.d)

# ---- The texts on the emulator (tests/msl/msl.h) ----

METAL_TILES  := gemm attn
MSL_OBJ      := $(METAL_NAMES:%=$(BUILD)/msl/%_0.o) \
                $(foreach n,$(METAL_TILES),$(foreach r,1 2 3,$(BUILD)/msl/$n_$r.o)) \
                $(BUILD)/tests/msl/msl.o
$(BUILD)/tests/msl/msl.o: EXTRA := -Itests/msl
MSL_VERSION_0 := 310
MSL_VERSION_1 := 310
MSL_VERSION_2 := 400
MSL_VERSION_3 := 400
# Position-independent: tests/standin has them in a shared library.
MSL_FLAGS    := -fPIC -Itests/msl -I$(BUILD) -DKX_SHIM -DMSL_RUN -ftrivial-auto-var-init=pattern -Wno-attributes -Wno-unknown-pragmas \
                -Wno-unused-function -Wno-unused-parameter $(if $(IS_CLANG),-Wno-unknown-attributes)
$(BUILD)/metal/%.bytes: $(BUILD)/metal/%.metal
	@od -An -v -tu1 $< | sed 's/^ *//; s/  */,/g; s/$$/,/' >$@
MSL_SHIM := $(wildcard tests/msl/*)
# $1 the name, $2 the rung
define msl_rule
$(BUILD)/msl/$1_$2.o: tests/msl/run.cpp $(MSL_SHIM) src/kernels/kernels.inc src/kernels/simt.h \
        $(BUILD)/metal/$1.metal $(BUILD)/metal/$1.bytes $(BUILD)/cxx-flags.txt mk/metal.mk
	@mkdir -p $$(@D)
	$$(Q)$$(CXX_COMPILE) -O1 $$(CXX_WARN) $$(MSL_FLAGS) -DMSL_NAME=$1 -DMSL_RUNG=$2 \
	    -DKX_FAMILY=$(call metal_number,$1) $(if $(filter $1,$(METAL_TILES)),-DCALLA_RUNG=$2) \
	    -D__METAL_VERSION__=$(MSL_VERSION_$2) $(if $(filter 2 3,$2),-D__HAVE_TENSOR__) \
	    -DMSL_TEXT='"metal/$1.metal"' -DMSL_BYTES='"metal/$1.bytes"' -c $$< -o $$@
endef
$(foreach n,$(METAL_NAMES),$(eval $(call msl_rule,$n,0)))
$(foreach n,$(METAL_TILES),$(foreach r,1 2 3,$(eval $(call msl_rule,$n,$r))))
.SECONDARY: $(METAL_NAMES:%=$(BUILD)/metal/%.bytes)

# By hand: a minute or two.
check-metal-mutants: $(BUILD)/calla-gpu-check ## errors in the text of Metal's matrix tiles are found
	@sh tests/msl/mutants.sh $(BUILD) '$(CXX_COMPILE) -O0 $(MSL_FLAGS)' '$(LINK)' \
	    $(GPU_CHECK_OBJ) $(CHECK_OBJ) $(MSL_OBJ) $(BUILD)/libcalla.a $(LINK_LIBS)
.PHONY: check-metal-mutants

# Finds what is wrong with a matrix unit.
$(BUILD)/tests/test_mm_metal: $(BUILD)/tests/test_mm_metal.o $(MSL_OBJ) $(BUILD)/libcalla.a
	$(Q)$(LINK) -o $@ $^ $(LINK_LIBS) $(CMOCKA_LDLIBS)

# ---- The texts as a compiler sees them, and what it does not see ----

$(BUILD)/msl-lint: tests/msl/lint.c tests/msl/lint_names.h $(BUILD)/flags.txt
	$(Q)$(COMPILE) $(DIAG) -D_GNU_SOURCE -MMD -MP -MF $@.d $< -o $@ $(SAN) $(LDFLAGS)
