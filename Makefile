# calla - `make help` is the front page.
.DEFAULT_GOAL := all

PREFIX  ?= /usr/local
DESTDIR ?=
BUILD   ?= build
V       ?= 0

CC      ?= cc
AR      ?= ar
UNAME_S := $(shell uname -s)
ARCH    := $(shell $(CC) -dumpmachine 2>/dev/null | cut -d- -f1)
PKG     ?= pkg-config
LIBS    := yajl libutf8proc
CLILIBS := libedit

WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wdouble-promotion -Wundef -Wvla \
        -Wcast-qual -Wstrict-prototypes -Wmissing-prototypes -Wformat=2 -Werror
OPT  ?= -O2 -g
# No -ffast-math anywhere. -ffp-contract=off: a*b+c is fused only where the source says fma.
CSTD := -std=c11 -ffp-contract=off -fno-math-errno -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE -D_DARWIN_C_SOURCE
SAN  ?=
CPPFLAGS += -Iinclude -Isrc $(shell $(PKG) --cflags $(LIBS) $(CLILIBS) 2>/dev/null)
CFLAGS   += $(CSTD) $(OPT) $(WARN) -fvisibility=hidden $(SAN)
LDLIBS   += $(shell $(PKG) --libs $(LIBS) 2>/dev/null) -lm -lpthread
CLILDLIBS := $(shell $(PKG) --libs $(CLILIBS) 2>/dev/null)
LDFLAGS  += $(SAN)

LIB_SRC := $(wildcard src/base/*.c src/format/*.c src/model/*.c src/exec/*.c src/exec/cpu/*.c src/text/*.c src/engine/*.c)
ifneq ($(ARCH),x86_64)
LIB_SRC := $(filter-out %_avx2.c %_avx512.c,$(LIB_SRC))
endif
ifeq ($(filter aarch64 arm64,$(ARCH)),)
LIB_SRC := $(filter-out %_neon.c,$(LIB_SRC))
endif
CLI_SRC := $(wildcard src/cli/*.c)
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/%.o)
CLI_OBJ := $(CLI_SRC:%.c=$(BUILD)/%.o)

Q := $(if $(filter 1,$(V)),,@)

all: $(BUILD)/calla $(BUILD)/libcalla.a

$(BUILD)/%_avx2.o: CFLAGS += -mavx2 -mfma
$(BUILD)/%_avx512.o: CFLAGS += -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mprefer-vector-width=512

$(BUILD)/src/cli/%.o: CPPFLAGS += -DCALLA_PREFIX='"$(PREFIX)"'

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/libcalla.a: $(LIB_OBJ)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/calla: $(CLI_OBJ) $(BUILD)/libcalla.a
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS) $(CLILDLIBS)

# Unit tests: tests/unit/test_X.c, each a cmocka program linked with the library.
UNIT_SRC := $(wildcard tests/unit/test_*.c)
UNIT_BIN := $(UNIT_SRC:tests/unit/%.c=$(BUILD)/tests/%)
$(BUILD)/tests/%: tests/unit/%.c $(BUILD)/libcalla.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(CPPFLAGS) $(filter-out -Wmissing-prototypes,$(CFLAGS)) -MMD -MP -Itests $< -o $@ $(LDFLAGS) $(BUILD)/libcalla.a $(LDLIBS) -lcmocka

unit: $(UNIT_BIN)
	@for t in $(UNIT_BIN); do $$t || exit 1; done

# Modules while they are being built: make obj O="src/text/chat.c ..."
objs: $(LIB_OBJ) $(CLI_OBJ)

clean:
	rm -rf $(BUILD)

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
.PHONY: all unit objs clean
