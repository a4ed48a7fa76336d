# The Mac program, built here: arm64, macOS 14 and later, and nothing to install on the Mac.
#   ZIG         zig, for its compiler, macOS's headers and the list of libSystem's symbols; by default
#               of the pinned release that pip installs into build-venv
#   LD64        LLVM's linker for macOS: zig's own cannot say which SDK a program is for
#   SOURCES     a folder with the libraries' tarballs, where apt cannot download them
#
# The release of zig is that with the headers and symbols of macOS 14: a function that came later
# does not compile or does not link. Metal goes by the SDK that LC_BUILD_VERSION names, so that is
# one with tensors.

ZIG_VERSION  := 0.13.0.post1
MACOS_MIN    := 14.0
MACOS_SDK    := 26.4
MACOS        := build-macos
MACOS_ABS    := $(CURDIR)/$(MACOS)
ZIG          ?= $(or $(wildcard $(CURDIR)/build-venv/lib/python3*/site-packages/ziglang/zig),zig-of-build-venv)
LD64         ?= $(shell command -v ld64.lld || command -v ld64.lld-14 || ls /usr/lib/llvm-*/bin/ld64.lld 2>/dev/null | tail -n 1)
MACOS_CC     := $(ZIG) cc -target aarch64-macos.$(MACOS_MIN) -mcpu=apple_m1
MACOS_CXX    := $(ZIG) c++ -target aarch64-macos.$(MACOS_MIN) -mcpu=apple_m1
# zig knows features by the processor; an M1 has SHA-2 and products of bytes.
ZIG_ISA      := ISA_armsha= ISA_dotprod= ISA_i8mm=-mcpu=apple_m1+i8mm
# Its cache would grow for ever in the home folder.
MACOS_ENV    := ZIG_GLOBAL_CACHE_DIR='$(MACOS_ABS)/zig' ZIG_LOCAL_CACHE_DIR='$(MACOS_ABS)/zig'
MACOS_WANT    = --min $(MACOS_MIN) --sdk $(MACOS_SDK) --symbols $(MACOS)/stub/libSystem.tbd
MACOS_PROGS  := $(MACOS)/calla $(MACOS)/calla-check $(MACOS)/calla-gpu-check

macos-env: ## what macos needs: zig of the pinned release, from PyPI into build-venv
	@test -x build-venv/bin/python || python3 -m venv build-venv
	@build-venv/bin/python -m pip install -q --disable-pip-version-check ziglang==$(ZIG_VERSION)

# -S: no debugging symbols, which would name folders of this machine.
macos: ## build-macos/calla for arm64 macOS, cross-compiled; and its check of the result
	@test -n '$(LD64)' || { echo "macos: no ld64.lld: install lld (make deps-ci), or LD64=..." >&2; exit 1; }
	@$(ZIG) version >/dev/null 2>&1 || $(MAKE) --no-print-directory macos-env
	@$(MAKE) --no-print-directory macos-build

macos-build:
	@mkdir -p $(MACOS)/stub
	@for l in System m dl pthread; do cp '$(dir $(ZIG))lib/libc/darwin/libSystem.tbd' $(MACOS)/stub/lib$$l.tbd; done
	@$(MACOS_ENV) CC='$(MACOS_CC)' AR='$(ZIG) ar' SOURCES='$(SOURCES)' sh tools/macos/deps.sh $(MACOS)/deps
	+@$(MACOS_ENV) $(MAKE) --no-print-directory BUILD=$(MACOS) OS=Darwin ARCH=arm64 IS_CLANG=clang \
	    CC='$(MACOS_CC)' CXX='$(MACOS_CXX)' CC_VERSION=zig-$(ZIG_VERSION) AR='$(ZIG) ar' OPT=-O2 SAN= NVCC= MISSING= LIBS_FOUND=1 \
	    $(ZIG_ISA) LIB_CPPFLAGS='-I$(MACOS)/deps/include' EDIT_CPPFLAGS='-DCALLA_EDIT_DLOPEN='\''"/usr/lib/libedit.3.dylib"'\' \
	    LINK='$(LD64) -arch arm64 -platform_version macos $(MACOS_MIN) $(MACOS_SDK) -dead_strip -S -L$(MACOS)/stub' \
	    LINK_LIBS='-L$(MACOS)/deps/lib -lyajl -lutf8proc -lmicrohttpd -lSystem' EDIT_LDLIBS= LDLIBS=-lSystem \
	    PREFIX=/usr/local $(MACOS)/libcalla.a $(MACOS_PROGS)
	@python3 tools/macos/check_macho.py $(MACOS_WANT) --not-in '$(CURDIR)' $(MACOS_PROGS)

# With faults planted in copies of the program: each must be seen. For .ci/run.
check-macos: macos
	@sh tools/runtests.sh \
	    'macos/load-commands=python3 tools/macos/check_macho.py $(MACOS_WANT) --not-in "$(CURDIR)" $(MACOS_PROGS)' \
	    'macos/planted-faults=python3 tools/macos/test_check_macho.py $(MACOS)/calla $(MACOS_WANT)'

# The same sources and libraries through the same compiler, for an M1, but for Linux: qemu runs what
# the Mac program computes.
TWIN    := build-macos-twin
TWIN_CC := $(ZIG) cc -target aarch64-linux-musl -mcpu=apple_m1
TWIN_RUN ?= qemu-aarch64
twin-build:
	@$(MACOS_ENV) CC='$(TWIN_CC)' AR='$(ZIG) ar' HOST=aarch64-linux-musl SOURCES='$(MACOS_ABS)/deps/tarballs' \
	    sh tools/macos/deps.sh $(TWIN)/deps
	+@$(MACOS_ENV) $(MAKE) --no-print-directory BUILD=$(TWIN) ARCH=aarch64 IS_CLANG=clang CC='$(TWIN_CC)' \
	    CXX='$(subst cc -target,c++ -target,$(TWIN_CC))' CC_VERSION=zig-$(ZIG_VERSION) AR='$(ZIG) ar' OPT=-O2 SAN= NVCC= \
	    MISSING= LIBS_FOUND=1 $(ZIG_ISA) LIB_CPPFLAGS='-I$(TWIN)/deps/include' \
	    EDIT_CPPFLAGS='-DCALLA_EDIT_DLOPEN='\''"libedit.so.2"'\' LDFLAGS=-static \
	    LIB_LDLIBS='-L$(TWIN)/deps/lib -lyajl -lutf8proc -lmicrohttpd' EDIT_LDLIBS= PREFIX=/usr/local $(TWIN)/calla
# Tens of minutes: an emulator runs the demonstration model's tests.
check-macos-twin: macos $(BUILD)/calla ## what the Mac program computes, in its build for Linux under qemu-aarch64
	@$(MAKE) --no-print-directory twin-build
	$(TWIN_RUN) $(TWIN)/calla --version
	sh tools/macos/twin.sh '$(TWIN_RUN)' $(TWIN)/calla
	$(TWIN_RUN) $(TWIN)/calla selftest

# .ci/run compares with the committed facts; this asks PyPI for them again. METAL_CPP: a folder with
# Apple's metal-cpp headers (of macOS 26), for those facts too.
PYOBJC_VERSION := 12.2.2
METAL_CPP      ?=
check-metal-api: ## the Metal driver's selectors and constants against public bindings (PyPI; METAL_CPP=...)
	@test -x build-venv/bin/python || python3 -m venv build-venv
	@rm -rf build-venv/pyobjc && mkdir -p build-venv/pyobjc
	@build-venv/bin/python -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: \
	    --platform macosx_11_0_universal2 --python-version 312 -d build-venv/pyobjc \
	    pyobjc-framework-Metal==$(PYOBJC_VERSION) pyobjc-framework-Cocoa==$(PYOBJC_VERSION)
	@cd build-venv/pyobjc && for w in *.whl; do python3 -m zipfile -e "$$w" .; done
	@python3 tools/check_metal_api.py --derive pyobjc=$(PYOBJC_VERSION):build-venv/pyobjc \
	    $(if $(METAL_CPP),metal-cpp=26:$(METAL_CPP)) >build-venv/metal-api.txt
	@grep '^$(if $(METAL_CPP),[^#],pyobjc)' tests/data/metal-api.txt | diff - build-venv/metal-api.txt || \
	    { echo "tests/data/metal-api.txt differs from build-venv/metal-api.txt" >&2; exit 1; }
	@python3 tools/check_metal_api.py

.PHONY: check-metal-api macos macos-env macos-build check-macos
