# The NEON kernels, cross-compiled for aarch64 Linux and run under qemu-user.
#   NEON_CC, NEON_RUN   the cross compiler; what runs its programs (empty on an arm64 machine)
#   NEON_NEED           variants that must have run: an arm64 machine may lack i8mm
#   KERNEL_ARGS         as for check-kernels

NEON_CC  ?= aarch64-linux-gnu-gcc
NEON_RUN ?= qemu-aarch64
NEON_NEED ?= --need neon --need i8mm
# Emulated processors without i8mm, and without the dot product: what they lack is passed over.
NEON_OLD ?= $(if $(NEON_RUN),cortex-a76 cortex-a72)

# A static program that needs no library of the target but libc: calla-check pulls no more in.
check-neon: ## the NEON kernels against the definition, under qemu-user
	@$(MAKE) --no-print-directory BUILD=build-aarch64 CC='$(NEON_CC)' LDFLAGS=-static LIB_LDLIBS= \
	    build-aarch64/calla-check
	@for c in $(NEON_OLD); do \
	    echo "$$c:" && $(NEON_RUN) -cpu $$c build-aarch64/calla-check --cases 2 '*_i*' || exit 1; done
	$(NEON_RUN) build-aarch64/calla-check $(NEON_NEED) $(KERNEL_ARGS)

# The plugin is for QEMU itself, so for this machine's compiler. Without the cross compiler or QEMU
# only this machine's variants are counted.
bench-instructions: $(BUILD)/count-kernels ## instructions a weight of each kernel variant; NEON's under qemu-user
	@if command -v $(NEON_CC) >/dev/null && command -v qemu-aarch64 >/dev/null; then \
	    $(MAKE) --no-print-directory BUILD=build-aarch64 CC='$(NEON_CC)' LDFLAGS=-static LIB_LDLIBS= \
	        build-aarch64/count-kernels && \
	    $(CC) -O2 $(WARN) -shared -fPIC -o build-aarch64/count.so bench/count/plugin.c; fi
	@BUILD=$(BUILD) bench/instructions $(KERNEL_ARGS)

.PHONY: check-neon bench-instructions
