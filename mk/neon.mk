# The NEON kernels, cross-compiled for aarch64 Linux and run under qemu-user.
#   NEON_CC, NEON_RUN   the cross compiler; what runs its programs (empty on an arm64 machine)
#   KERNEL_ARGS         as for check-kernels

NEON_CC  ?= aarch64-linux-gnu-gcc
NEON_RUN ?= qemu-aarch64

# A static program that needs no library of the target but libc: calla-check pulls no more in.
check-neon: ## the NEON kernels against the definition, under qemu-user
	@$(MAKE) --no-print-directory BUILD=build-aarch64 CC='$(NEON_CC)' LDFLAGS=-static LIB_LDLIBS= \
	    build-aarch64/calla-check
	$(NEON_RUN) build-aarch64/calla-check --need neon $(KERNEL_ARGS)

.PHONY: check-neon
