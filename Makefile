# calla - `make help` lists the targets.
#
# Needs GNU make 3.81 or later and GCC or Clang; x86-64 or arm64; Linux or macOS.
#   BUILD=dir       where everything is built             (build)
#   CC, CFLAGS, CPPFLAGS, LDFLAGS, LDLIBS                 added after the project's own flags
#   OPT='-O2 -g'    optimisation                          SAN=-fsanitize=...  sanitizers
#   NVCC=...        CUDA's compiler, found by itself; NVCC= builds without CUDA kernels
#   WERROR=0|1      warnings are errors; on by default with the compilers that CI proves
#   V=1             show the commands
#   PREFIX, DESTDIR see `make install`
# A file config.mk beside this one, which git ignores, may set any of them for good.
.DEFAULT_GOAL := all
-include config.mk

VERSION := $(shell sed -n 's/^.define CALLA_VERSION "\(.*\)"/\1/p' include/calla.h)
PREFIX  ?= /usr/local
DESTDIR ?=
BUILD   ?= build
V       ?= 0
Q       := $(if $(filter 1,$(V)),,@)

CC   ?= cc
AR   ?= ar
PKG  ?= pkg-config
OPT  ?= -O2 -g
SAN  ?=

OS         := $(shell uname -s)
# Not asked where the command line says it: zig, asked so, makes an a.out.
ask         = $(if $(findstring command,$(origin $1)),$($1),$(shell $(CC) $2 2>/dev/null))
ARCH       := $(firstword $(subst -, ,$(call ask,ARCH,-dumpmachine)))
CC_VERSION := $(call ask,CC_VERSION,-dumpversion)
IS_CLANG   := $(findstring clang,$(call ask,IS_CLANG,--version))
# GCC 12 and Clang 14 are the compilers of .ci/run; a newer one may know new warnings.
ifeq ($(origin WERROR),undefined)
WERROR := $(if $(filter 12 14.0.6,$(CC_VERSION)),1,0)
endif

# ---- Libraries ---------------------------------------------------------------------------------

LIBS := yajl libutf8proc libmicrohttpd
LIBS_FOUND := $(shell $(PKG) --exists $(LIBS) 2>/dev/null && echo 1)
ifeq ($(LIBS_FOUND),1)
LIB_CPPFLAGS := $(shell $(PKG) --cflags $(LIBS))
LIB_LDLIBS   := $(shell $(PKG) --libs $(LIBS))
else # No pkg-config: the names that the libraries have everywhere.
BREW         := $(if $(filter Darwin,$(OS)),$(shell brew --prefix 2>/dev/null))
LIB_CPPFLAGS := $(if $(BREW),-I$(BREW)/include)
LIB_LDLIBS   := $(if $(BREW),-L$(BREW)/lib) -lyajl -lutf8proc -lmicrohttpd
endif
EDIT_CPPFLAGS := $(shell $(PKG) --cflags libedit 2>/dev/null)
EDIT_LDLIBS   := $(shell $(PKG) --libs libedit 2>/dev/null)
# Of libcurl the headers: the library is opened when something is downloaded.
CURL_FOUND := $(shell echo '\#include <curl/curl.h>' | $(CC) $(CPPFLAGS) -E - >/dev/null 2>&1 && echo 1)
# Empty, or the libraries that a build cannot do without; see `need-libs`.
ifneq ($(if $(findstring command,$(origin MISSING)),111,$(LIBS_FOUND)$(if $(EDIT_LDLIBS),1)$(CURL_FOUND)),111)
MISSING := $(shell CC='$(CC)' CPPFLAGS='$(LIB_CPPFLAGS) $(CPPFLAGS)' LDFLAGS='$(LDFLAGS)' \
                   sh tools/deps.sh --missing build)
endif
EDIT_LDLIBS   := $(or $(strip $(EDIT_LDLIBS)),-ledit)

# ---- Flags -------------------------------------------------------------------------------------

WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wdouble-promotion -Wundef -Wvla \
        -Wcast-qual -Wstrict-prototypes -Wmissing-prototypes -Wformat=2 \
        $(if $(IS_CLANG),-Wno-pass-failed,-Wno-format-truncation)
# -Wno-pass-failed: Clang says when it unrolls less than UNROLLED asks, as it does without
# optimisation. -Wno-format-truncation: snprintf cuts messages on purpose.
# No -ffast-math anywhere. -ffp-contract=off: a*b+c is fused only where the source says fma.
C_FLAGS := -std=c11 -ffp-contract=off -fno-math-errno -fvisibility=hidden \
           -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE -D_DARWIN_C_SOURCE
# All that decides what an object contains: a change rebuilds it ($(BUILD)/flags.txt).
COMPILE := $(CC) -Iinclude -Isrc $(LIB_CPPFLAGS) $(C_FLAGS) $(OPT) $(SAN) $(CPPFLAGS) $(CFLAGS)
DIAG    := $(WARN) $(if $(filter 1,$(WERROR)),-Werror)
LINK    := $(CC) $(SAN) $(LDFLAGS)
LINK_LIBS := $(LIB_LDLIBS) -lm -lpthread $(if $(filter Linux,$(OS)),-ldl) $(LDLIBS)

# The last part of a file's name, as in matmul_avx2.c, says which instructions it may use.
ISA_avx2       := -mavx2 -mfma
ISA_avx512     := $(ISA_avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512
ISA_avx512vnni := $(ISA_avx512) -mavx512vnni
ISA_neon       :=
ISA_dotprod    := -march=armv8.2-a+dotprod
ISA_avxvnni    := $(ISA_avx2) -mavxvnni
ISA_i8mm       := -march=armv8.2-a+dotprod+i8mm
ISA_shani      := -msse4.1 -msha
ISA_armsha     := -march=armv8-a+crypto
isa             = $(ISA_$(lastword $(subst _, ,$(basename $(notdir $1)))))

ISAS_x86 := avx2 avxvnni avx512 avx512vnni shani
ISAS_arm := neon dotprod i8mm armsha
ISAS_off := $(if $(filter x86_64,$(ARCH)),,$(ISAS_x86)) \
            $(if $(filter aarch64 arm64,$(ARCH)),,$(ISAS_arm))

# ---- Sources -----------------------------------------------------------------------------------

LIB_DIRS := base net format model kernels exec exec/cpu exec/gpu exec/gpu/simt exec/gpu/cuda exec/gpu/metal text engine server
LIB_SRC  := $(filter-out $(foreach i,$(ISAS_off),%_$(i).c %/$(i).c),\
              $(sort $(wildcard $(LIB_DIRS:%=src/%/*.c))))
CLI_SRC  := $(sort $(wildcard src/cli/*.c))
CHECK_SRC := $(sort $(wildcard src/check/*.c))
MEASURE_SRC := $(filter-out $(foreach i,$(ISAS_off),%_$(i).c),$(sort $(wildcard src/bench/*.c)))
include mk/cuda.mk
include mk/metal.mk
include mk/gpu.mk
LIB_OBJ  := $(LIB_SRC:%.c=$(BUILD)/%.o) $(BUILD)/page.o $(CUDA_OBJ) $(SIMT_OBJ) $(BUILD)/metal/source.o
CLI_OBJ  := $(CLI_SRC:%.c=$(BUILD)/%.o)
MEASURE_OBJ := $(MEASURE_SRC:%.c=$(BUILD)/%.o)

# ---- Building ----------------------------------------------------------------------------------

all: $(if $(CLI_SRC),$(BUILD)/calla) $(BUILD)/libcalla.a compile_commands.json ## build/calla, build/libcalla.a, compile_commands.json

$(CLI_OBJ): EXTRA := $(EDIT_CPPFLAGS) -DCALLA_PREFIX='"$(PREFIX)"'
$(CLI_OBJ): $(BUILD)/prefix.txt

# What `calla bench` was built from; "" outside of a checkout.
COMMIT := $(if $(wildcard .git),$(shell git describe --always --dirty 2>/dev/null))
$(BUILD)/src/bench/commit.o: EXTRA := -DCALLA_COMMIT='"$(COMMIT)"'
$(BUILD)/src/bench/commit.o: $(BUILD)/commit.txt

$(BUILD)/%.o: %.c $(BUILD)/flags.txt
	@mkdir -p $(@D)
	$(Q)$(COMPILE) $(DIAG) $(call isa,$<) $(EXTRA) -MMD -MP -c $< -o $@

$(BUILD)/libcalla.a: $(LIB_OBJ) $(BUILD)/objects.txt
	$(Q)rm -f $@ && $(AR) rcs $@ $(LIB_OBJ)

# The chat page, as a C array.
PAGE := $(wildcard src/server/page/index.html)
$(BUILD)/page.c: tools/embed.sh $(PAGE)
	@mkdir -p $(@D)
	@sh tools/embed.sh server_page server/page.h $(PAGE) >$@.tmp && mv $@.tmp $@
$(BUILD)/page.o: $(BUILD)/page.c $(BUILD)/flags.txt
	$(Q)$(COMPILE) $(DIAG) -MMD -MP -c $< -o $@

$(BUILD)/calla: $(CLI_OBJ) $(MEASURE_OBJ) $(CHECK_OBJ) $(BUILD)/libcalla.a
	$(Q)$(LINK) -o $@ $^ $(LINK_LIBS) $(EDIT_LDLIBS)

# Files that change only when what they record changes.
record = @mkdir -p $(@D); printf '%s\n' '$(subst ','\'',$1)' >$@.tmp; \
         if cmp -s $@.tmp $@; then rm -f $@.tmp; else mv $@.tmp $@; fi
$(BUILD)/flags.txt: FORCE $(if $(MISSING),need-libs)
	$(call record,$(COMPILE) $(CC_VERSION) $(ISA_avx512vnni) $(ISA_avxvnni) $(ISA_dotprod) $(ISA_i8mm) $(ISA_shani) $(ISA_armsha))
$(BUILD)/prefix.txt: FORCE
	$(call record,$(PREFIX))
$(BUILD)/commit.txt: FORCE
	$(call record,$(COMMIT))
$(BUILD)/objects.txt: FORCE
	$(call record,$(LIB_OBJ))

need-libs:
	@command -v $(firstword $(CC)) >/dev/null || { echo "calla needs a C compiler; there is no" \
	      "'$(CC)': CC=... names another" >&2; exit 1; }
	@echo "calla needs: $(strip $(MISSING)). 'make deps' installs what is missing;" \
	      "'make demo' and 'make test' do so first." >&2; exit 1

include mk/test.mk
include mk/standin.mk
include mk/serve.mk
include mk/install.mk
include mk/macos.mk
include mk/package.mk
-include mk/neon.mk

# For editors and clang-tidy; written from the variables above, so it is right without a build.
DB_SRC := $(LIB_SRC) $(CHECK_SRC) $(MEASURE_SRC) $(CLI_SRC) $(TEST_SRC)
compile_commands.json: FORCE
	@printf '%s\n' $(foreach s,$(DB_SRC),'$(s) $(call isa,$(s))') | \
	    COMPILE='$(subst ','\'',$(COMPILE) $(EDIT_CPPFLAGS) -Itests $(WARN))' BUILD='$(BUILD)' \
	    sh tools/compdb.sh >$@.tmp
	@if cmp -s $@.tmp $@; then rm -f $@.tmp; else mv $@.tmp $@; fi

clean: ## remove what was built
	rm -rf build build-* compile_commands.json

help: ## this page
	@echo "calla $(VERSION): local inference for Qwen3.6-35B-A3B"
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' \
	    $(filter-out %.d config.mk,$(MAKEFILE_LIST))
	@sed -n '/^#   [A-Z]/s/^# //p' Makefile

-include $(patsubst %.o,%.d,$(wildcard $(LIB_OBJ) $(CLI_OBJ) $(MEASURE_OBJ) $(CHECK_OBJ)))
FORCE:
.PHONY: all clean help need-libs FORCE
.SUFFIXES:
.DELETE_ON_ERROR:
