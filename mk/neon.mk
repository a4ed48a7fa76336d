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

.PHONY: check-neon
