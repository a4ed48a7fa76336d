/* cmd_inspect.c - calla inspect: what a checkpoint holds, and the memory it would take. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/json.h"
#include "base/mem.h"
#include "base/pool.h"
#include "cli/cli.h"
#include "cli/inspect_schedule.h"
#include "engine/engine.h"
#include "engine/sysmem.h"
#include "model/synth.h"

typedef struct inspect_options {
    cli_common common;
    int tensors, memory, schedule, predict, json;
    const char *chip;
    uint64_t n_ctx, n_parallel;
} inspect_options;

static const cli_option options[] = {
    CLI_OPT_FLAG(0, "tensors", inspect_options, tensors, 1,
                 "list every tensor: dtype, shape, bytes"),
    CLI_OPT_FLAG(0, "memory", inspect_options, memory, 1, "the memory plan only"),
    CLI_OPT_FLAG(0, "schedule", inspect_options, schedule, 1,
                 "what a GPU does: kernels, dependent stages, bytes"),
    CLI_OPT_FLAG(0, "predict", inspect_options, predict, 1,
                 "predicted speed on GPUs, of DIR or else of Qwen3.6-35B-A3B"),
    CLI_OPT_CHOICE(0, "chip", inspect_options, chip,
                   "m1-max|m4-pro|m3-ultra|m5-max-26.2|m5-max|h200",
                   "the GPU for --schedule (default h200) and --predict (default all)"),
    CLI_OPT_UINT(0, "ctx", inspect_options, n_ctx, 1, 1e9, "N",
                 "tokens of context to plan for; default 4096"),
    CLI_OPT_UINT(0, "parallel", inspect_options, n_parallel, 1, 64, "N",
                 "sequences of that context to plan for; default 1"),
    CLI_OPT_FLAG(0, "json", inspect_options, json, 1, "one JSON object"),
    CLI_ROW_MODEL(inspect_options, common),
    CLI_ROW_BACKEND(inspect_options, common),
    CLI_ROW_THREADS(inspect_options, common),
    CLI_ROW_PACK_DIR(inspect_options, common),
    CLI_OPT_END,
};

static int cmd_inspect(int argc, char **argv);

const cli_command cli_inspect = {
    .name = "inspect",
    .summary = "what a checkpoint holds, and its memory plan",
    .args = "[DIR]",
    .about =
        "Opens the checkpoint DIR (default: as -m), checks every file and tensor, and prints its\n"
        "configuration, the bytes of its groups of tensors, and the memory it would take. Nothing\n"
        "is computed. For the real model's 4-bit conversion, each group is compared with the\n"
        "published size.\n",
    .options = options,
    .n_args_max = 1,
    .main = cmd_inspect,
};

/* docs/MODEL.md, 3.2: bytes of the groups of the MLX 4-bit checkpoint. */
static const uint64_t published[WEIGHT_GROUPS] = {286064640, 286064640, 568442880,  1977600,
                                                  153354240, 331776,    10240,      22282240,
                                                  87040,     70778880,  18119393280};

typedef struct report {
    char *dir;
    checkpoint *ck;
    model_shape shape;
    model_weights w;
    weight_group groups[WEIGHT_GROUPS];
    uint64_t n_tensors;     /* text */
    bool comparable;        /* the real shape in MLX's layout */
    uint32_t n_matrices[4]; /* by mat_type; an expert bank counts as one */
    calla_memory_plan plan;
    uint32_t n_ctx, n_threads, n_parallel;
    uint64_t sum; /* of n_parallel sessions, without what is mapped */
    uint64_t available;
    const char *backend; /* a GPU's: gpu and pack are filled; else "cpu" */
    exec_plan gpu;
    exec_pack pack; /* path NULL: none */
} report;

/* ---- Collecting ---- */

static void count_matrices(report *r)
{
    const model_weights *w = &r->w;
    r->n_matrices[w->embed.type]++;
    r->n_matrices[w->lm_head.type]++;
    for (uint32_t i = 0; i < r->shape.n_layers; i++) {
        const layer_weights *l = &w->layers[i];
        const matrix *const all[] = {&l->in_qkv,
                                     &l->in_z,
                                     &l->in_b,
                                     &l->in_a,
                                     &l->gdn_out,
                                     &l->q,
                                     &l->k,
                                     &l->v,
                                     &l->o,
                                     &l->router,
                                     &l->gate.first,
                                     &l->up.first,
                                     &l->down.first,
                                     &l->shared_gate,
                                     &l->shared_up,
                                     &l->shared_down,
                                     &l->shared_router};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            if (all[k]->data != NULL) r->n_matrices[all[k]->type]++;
    }
}

typedef struct dimensions {
    uint32_t d[14];
} dimensions;

static dimensions dimensions_of(const model_shape *s)
{
    return (dimensions){{s->n_layers, s->hidden, s->n_vocab, s->full_interval, s->n_heads,
                         s->n_kv_heads, s->gdn_k_heads, s->gdn_v_heads, s->n_experts,
                         s->n_experts_used, s->expert_width, s->shared_width, s->head_dim,
                         s->gdn_v_dim}};
}

static bool is_real_shape(const model_shape *s)
{
    model_shape real;
    if (synth_shape(&real, "full", 0, NULL) != CALLA_OK) return false;
    const dimensions a = dimensions_of(&real), b = dimensions_of(s);
    return memcmp(a.d, b.d, sizeof a.d) == 0;
}

static calla_status collect_gpu(report *r, const inspect_options *o, calla_error *err)
{
    char *pack_dir;
    calla_status st = cli_pack_dir(&o->common, &pack_dir, err);
    if (st != CALLA_OK) return st;
    const exec_options eo = {
        .chunk_tokens = ENGINE_CHUNK_GPU, .pack_dir = pack_dir, .source = r->ck};
    r->backend = o->common.backend;
    exec_gpu_plan(&r->shape, &eo, r->n_ctx, &r->gpu);
    r->sum = r->gpu.weight_bytes + r->gpu.scratch_bytes +
             r->n_parallel * (r->gpu.kv_bytes + r->gpu.state_bytes);
    if (pack_dir != NULL && strcmp(pack_dir, "none") != 0)
        st = exec_gpu_pack(&r->pack, &r->shape, &eo, err);
    mem_free(pack_dir);
    return st;
}

static calla_status collect(report *r, const inspect_options *o, const char *dir, calla_error *err)
{
    calla_status st;
    exec_plan exec;
    TRY(cli_model_dir(dir, &r->dir, err));
    TRY(checkpoint_open(&r->ck, r->dir, err));
    TRY(shape_read(&r->shape, checkpoint_config(r->ck), checkpoint_generation_config(r->ck), err));
    TRY(weights_bind(&r->w, r->ck, &r->shape, err));
    weights_groups(r->ck, r->groups);
    for (uint32_t i = 0; i < WEIGHT_GROUPS; i++)
        r->n_tensors += r->groups[i].n_tensors;
    count_matrices(r);
    r->comparable = !r->w.hf_layout && is_real_shape(&r->shape);
    r->n_ctx = o->n_ctx != 0 ? (uint32_t)o->n_ctx : ENGINE_CTX_DEFAULT;
    if (r->n_ctx > r->shape.max_context) {
        if (o->n_ctx != 0)
            return err_set(err, CALLA_ERR_ARGUMENT,
                           "--ctx: expected at most %u, the context of this model, found %u",
                           r->shape.max_context, r->n_ctx);
        r->n_ctx = r->shape.max_context;
    }
    r->n_threads = o->common.n_threads != 0 ? (uint32_t)o->common.n_threads : cpu_count();
    const exec_options eo = {.n_threads = r->n_threads, .chunk_tokens = ENGINE_CHUNK_DEFAULT};
    exec_cpu_plan(&r->shape, &eo, r->n_ctx, &exec);
    plan_fill(&r->plan, &exec, &r->w, r->shape.n_vocab, r->n_ctx);
    r->n_parallel = o->n_parallel != 0 ? (uint32_t)o->n_parallel : 1;
    r->sum = r->plan.total_bytes +
             (r->n_parallel - 1) * (r->plan.kv_bytes + r->plan.state_bytes + r->plan.logits_bytes);
    r->available = sysmem_available();
    r->backend = "cpu";
    if (strcmp(o->common.backend, "cpu") != 0 && strcmp(o->common.backend, "auto") != 0)
        st = collect_gpu(r, o, err);
fail:
    return st;
}

static void release(report *r)
{
    weights_unbind(&r->w);
    checkpoint_close(r->ck);
    mem_free(r->pack.path);
    mem_free(r->dir);
}

/* ---- Text ---- */

/* 1234567 as "1,234,567". */
typedef struct digits {
    char s[32];
} digits;

static digits grouped(uint64_t n)
{
    digits d;
    char plain[24];
    const int len = snprintf(plain, sizeof plain, "%llu", (unsigned long long)n);
    int k = 0;
    for (int i = 0; i < len; i++) {
        if (i != 0 && (len - i) % 3 == 0) d.s[k++] = ',';
        d.s[k++] = plain[i];
    }
    d.s[k] = '\0';
    return d;
}

/* "18.2 GiB", "11.7 MiB", "3.5 KiB" */
static digits scaled(uint64_t n)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    digits d;
    double v = (double)n;
    size_t u = 0;
    for (; v >= 1024 && u < 4; u++)
        v /= 1024;
    (void)snprintf(d.s, sizeof d.s, u == 0 ? "%.0f %s" : "%.2f %s", v, units[u]);
    return d;
}

static void text_config(strbuf *b, const report *r)
{
    static const char *const types[] = {"4-bit", "8-bit", "bf16", "f32"};
    const model_shape *s = &r->shape;
    uint32_t n_full = 0;
    for (uint32_t i = 0; i < s->n_layers; i++)
        n_full += shape_is_full(s, i);
    (void)strbuf_printf(b, "%s\n", r->dir);
    (void)strbuf_printf(b, "  layers      %u: %u Gated DeltaNet, %u attention\n", s->n_layers,
                        s->n_layers - n_full, n_full);
    (void)strbuf_printf(b, "  hidden      %u; context %s tokens\n", s->hidden,
                        grouped(s->max_context).s);
    (void)strbuf_printf(b,
                        "  attention   %u query and %u key-value heads of %u; %u of them rotate, "
                        "theta %.0f\n",
                        s->n_heads, s->n_kv_heads, s->head_dim, s->rotary_dim,
                        (double)s->rope_theta);
    (void)strbuf_printf(b, "  DeltaNet    %u key and %u value heads of %u; convolution over %u\n",
                        s->gdn_k_heads, s->gdn_v_heads, s->gdn_v_dim, s->conv_kernel);
    (void)strbuf_printf(b,
                        "  experts     %u of width %u, %u used per token; 1 shared of width %u\n",
                        s->n_experts, s->expert_width, s->n_experts_used, s->shared_width);
    (void)strbuf_printf(b, "  vocabulary  %s rows; stops at", grouped(s->n_vocab).s);
    for (uint32_t i = 0; i < s->n_stop_ids; i++)
        (void)strbuf_printf(b, "%s %d", i == 0 ? "" : ",", s->stop_ids[i]);
    (void)strbuf_printf(b,
                        "\n  layout      %s; matrices:", r->w.hf_layout ? "Hugging Face" : "MLX");
    const char *comma = "";
    for (int i = 0; i < 4; i++) {
        if (r->n_matrices[i] == 0) continue;
        (void)strbuf_printf(b, "%s %u %s", comma, r->n_matrices[i], types[i]);
        comma = ",";
    }
    const size_t n_shards = checkpoint_n_shards(r->ck);
    (void)strbuf_printf(b, "%s\n  files       %zu shard%s, %s bytes (%s)\n",
                        r->n_matrices[MAT_Q4] + r->n_matrices[MAT_Q8] != 0 ? ", groups of 64" : "",
                        n_shards, n_shards == 1 ? "" : "s", grouped(checkpoint_file_bytes(r->ck)).s,
                        scaled(checkpoint_file_bytes(r->ck)).s);
}

static void text_group_row(strbuf *b, const report *r, const char *name, uint64_t n_tensors,
                           uint64_t n_bytes, uint64_t expected)
{
    (void)strbuf_printf(b, "  %-28s %7s %18s  %10s", name, grouped(n_tensors).s, grouped(n_bytes).s,
                        scaled(n_bytes).s);
    if (r->comparable && n_bytes == expected)
        (void)strbuf_puts(b, "  equal");
    else if (r->comparable)
        (void)strbuf_printf(b, "  differs: published %s", grouped(expected).s);
    (void)strbuf_putc(b, '\n');
}

static void text_groups(strbuf *b, const report *r)
{
    uint64_t total = 0;
    (void)strbuf_printf(b, "\n  %-28s %7s %18s%s\n", "group", "tensors", "bytes",
                        r->comparable ? "              published" : "");
    for (uint32_t i = 0; i < WEIGHT_GROUPS; i++) {
        const weight_group *g = &r->groups[i];
        text_group_row(b, r, g->name, g->n_tensors, g->n_bytes, published[i]);
        total += published[i];
    }
    text_group_row(b, r, "text total", r->n_tensors, r->w.mapped_bytes, total);
    (void)strbuf_printf(b, "  %-28s %7s %18s  %10s\n", "read per decoded token", "",
                        grouped(r->w.active_bytes).s, scaled(r->w.active_bytes).s);
    if (r->w.n_skipped_vision + r->w.n_skipped_mtp != 0)
        (void)strbuf_printf(b, "  skipped: %u vision and %u MTP tensors, %s bytes\n",
                            r->w.n_skipped_vision, r->w.n_skipped_mtp,
                            grouped(r->w.skipped_bytes).s);
}

typedef struct memory_row {
    const char *name, *note;
    uint64_t n;
} memory_row;

static void text_rows(strbuf *b, const memory_row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        (void)strbuf_printf(b, "  %-28s %26s  %10s%s%s\n", rows[i].name, grouped(rows[i].n).s,
                            scaled(rows[i].n).s, rows[i].note[0] == '\0' ? "" : "  ", rows[i].note);
}

static const char *sessions(const report *r, char text[32])
{
    if (r->n_parallel == 1) return "one session";
    (void)snprintf(text, 32, "%u sessions", r->n_parallel);
    return text;
}

static void text_memory_gpu(strbuf *b, const report *r)
{
    char note[32];
    const memory_row rows[] = {
        {"weights, packed", "", r->gpu.weight_bytes},
        {"work buffers", "", r->gpu.scratch_bytes},
        {"KV cache", "per session", r->gpu.kv_bytes},
        {"recurrent state", "per session", r->gpu.state_bytes},
        {"sum", sessions(r, note), r->sum},
    };
    (void)strbuf_printf(b, "GPU memory for a context of %s tokens, %s, bf16 cache\n",
                        grouped(r->n_ctx).s, r->backend);
    text_rows(b, rows, sizeof rows / sizeof *rows);
    if (r->pack.path == NULL) {
        (void)strbuf_puts(b, "packed weights are not kept in a file\n");
        return;
    }
    const memory_row file = {"packed weights on disk", "", r->pack.bytes};
    text_rows(b, &file, 1);
    (void)strbuf_printf(b, "  %s: %s\n", r->pack.path,
                        r->pack.usable                     ? "there"
                        : r->pack.why.code == CALLA_ERR_IO ? "not there yet"
                                                           : r->pack.why.message);
}

static void text_memory(strbuf *b, const report *r)
{
    const calla_memory_plan *p = &r->plan;
    char note[32];
    const memory_row rows[] = {
        {"small tensors as f32", "", p->weights_copied},
        {"KV cache", "per session", p->kv_bytes},
        {"recurrent state", "per session", p->state_bytes},
        {"logits, sampler, ids", "per session", p->logits_bytes},
        {"work buffers", "", p->scratch_bytes},
        {"allocated", sessions(r, note), r->sum},
        {"weights, mapped", "page cache, shared", p->weights_mapped},
        {"sum", "", r->sum + p->weights_mapped},
    };
    if (strcmp(r->backend, "cpu") != 0) {
        text_memory_gpu(b, r);
        return;
    }
    (void)strbuf_printf(b, "memory for a context of %s tokens, cpu, %u thread%s, bf16 cache\n",
                        grouped(r->n_ctx).s, r->n_threads, r->n_threads == 1 ? "" : "s");
    text_rows(b, rows, sizeof rows / sizeof *rows);
    if (r->available != UINT64_MAX)
        (void)strbuf_printf(b, "  %-28s %26s  %10s  %s\n", "available on this machine",
                            grouped(r->available).s, scaled(r->available).s,
                            r->sum + p->weights_mapped <= r->available ? "enough" : "not enough");
}

static void text_tensors(strbuf *b, const report *r)
{
    const size_t n = checkpoint_count(r->ck);
    (void)strbuf_printf(b, "%-7s %-20s %15s  name\n", "dtype", "shape", "bytes");
    for (size_t i = 0; i < n; i++) {
        const st_tensor *t = checkpoint_at(r->ck, i);
        strbuf shape = {0};
        for (uint32_t d = 0; d < t->n_dims; d++)
            (void)strbuf_printf(&shape, "%s%llu", d == 0 ? "" : "x",
                                (unsigned long long)t->shape[d]);
        (void)strbuf_printf(b, "%-7s %-20s %15s  %s\n", st_dtype_name(t->dtype),
                            shape.data != NULL ? shape.data : "scalar", grouped(t->n_bytes).s,
                            t->name);
        strbuf_deinit(&shape);
    }
}

/* ---- JSON ---- */

static void json_number(strbuf *b, const char *key, uint64_t n)
{
    (void)strbuf_printf(b, ", \"%s\": %llu", key, (unsigned long long)n);
}

static void json_config(strbuf *b, const report *r)
{
    const model_shape *s = &r->shape;
    (void)strbuf_printf(b, "\"config\": {\"layers\": %u", s->n_layers);
    json_number(b, "full_attention_interval", s->full_interval);
    json_number(b, "hidden", s->hidden);
    json_number(b, "max_context", s->max_context);
    json_number(b, "heads", s->n_heads);
    json_number(b, "kv_heads", s->n_kv_heads);
    json_number(b, "head_dim", s->head_dim);
    json_number(b, "gdn_key_heads", s->gdn_k_heads);
    json_number(b, "gdn_value_heads", s->gdn_v_heads);
    json_number(b, "gdn_head_dim", s->gdn_v_dim);
    json_number(b, "experts", s->n_experts);
    json_number(b, "experts_used", s->n_experts_used);
    json_number(b, "expert_width", s->expert_width);
    json_number(b, "shared_width", s->shared_width);
    json_number(b, "vocabulary", s->n_vocab);
    (void)strbuf_puts(b, ", \"stop_ids\": [");
    for (uint32_t i = 0; i < s->n_stop_ids; i++)
        (void)strbuf_printf(b, "%s%d", i == 0 ? "" : ", ", s->stop_ids[i]);
    (void)strbuf_puts(b, "]}");
}

static void json_groups(strbuf *b, const report *r)
{
    (void)strbuf_puts(b, "\"groups\": [");
    for (uint32_t i = 0; i < WEIGHT_GROUPS; i++) {
        const weight_group *g = &r->groups[i];
        (void)strbuf_printf(b, "%s{\"name\": \"%s\"", i == 0 ? "" : ", ", g->name);
        json_number(b, "tensors", g->n_tensors);
        json_number(b, "bytes", g->n_bytes);
        if (r->comparable)
            (void)strbuf_printf(b, ", \"published\": %llu, \"equal\": %s",
                                (unsigned long long)published[i],
                                g->n_bytes == published[i] ? "true" : "false");
        (void)strbuf_putc(b, '}');
    }
    (void)strbuf_puts(b, "]");
}

static void json_memory(strbuf *b, const report *r)
{
    const calla_memory_plan *p = &r->plan;
    (void)strbuf_printf(b, "\"memory\": {\"ctx\": %u, \"threads\": %u", r->n_ctx, r->n_threads);
    json_number(b, "weights_mapped", p->weights_mapped);
    json_number(b, "weights_copied", p->weights_copied);
    json_number(b, "kv_bytes", p->kv_bytes);
    json_number(b, "state_bytes", p->state_bytes);
    json_number(b, "logits_bytes", p->logits_bytes);
    json_number(b, "scratch_bytes", p->scratch_bytes);
    json_number(b, "total_bytes", p->total_bytes);
    if (r->n_parallel != 1) json_number(b, "sessions", r->n_parallel);
    if (r->n_parallel != 1) json_number(b, "sum_bytes", r->sum);
    if (r->available != UINT64_MAX) json_number(b, "available_bytes", r->available);
    (void)strbuf_putc(b, '}');
}

static void json_memory_gpu(strbuf *b, const report *r)
{
    (void)strbuf_printf(b, "\"gpu_memory\": {\"ctx\": %u, \"sessions\": %u", r->n_ctx,
                        r->n_parallel);
    json_number(b, "weight_bytes", r->gpu.weight_bytes);
    json_number(b, "scratch_bytes", r->gpu.scratch_bytes);
    json_number(b, "kv_bytes", r->gpu.kv_bytes);
    json_number(b, "state_bytes", r->gpu.state_bytes);
    json_number(b, "total_bytes", r->sum);
    if (r->pack.path != NULL) {
        (void)strbuf_puts(b, ", \"pack\": {\"path\": ");
        (void)json_write_string(b, r->pack.path, strlen(r->pack.path));
        json_number(b, "bytes", r->pack.bytes);
        (void)strbuf_printf(b, ", \"usable\": %s}", r->pack.usable ? "true" : "false");
    }
    (void)strbuf_putc(b, '}');
}

static void json_tensors(strbuf *b, const report *r)
{
    const size_t n = checkpoint_count(r->ck);
    (void)strbuf_puts(b, "\"tensors\": [");
    for (size_t i = 0; i < n; i++) {
        const st_tensor *t = checkpoint_at(r->ck, i);
        (void)strbuf_puts(b, i == 0 ? "{\"name\": " : ", {\"name\": ");
        (void)json_write_string(b, t->name, strlen(t->name));
        (void)strbuf_printf(b, ", \"dtype\": \"%s\", \"shape\": [", st_dtype_name(t->dtype));
        for (uint32_t d = 0; d < t->n_dims; d++)
            (void)strbuf_printf(b, "%s%llu", d == 0 ? "" : ", ", (unsigned long long)t->shape[d]);
        (void)strbuf_puts(b, "]");
        json_number(b, "bytes", t->n_bytes);
        (void)strbuf_putc(b, '}');
    }
    (void)strbuf_puts(b, "]");
}

static void write_json(strbuf *b, const report *r, const inspect_options *o)
{
    (void)strbuf_puts(b, "{\"dir\": ");
    (void)json_write_string(b, r->dir, strlen(r->dir));
    (void)strbuf_puts(b, ", ");
    if (!o->memory) {
        json_config(b, r);
        (void)strbuf_printf(b, ", \"layout\": \"%s\"", r->w.hf_layout ? "hf" : "mlx");
        (void)strbuf_printf(b,
                            ", \"matrices\": {\"q4\": %u, \"q8\": %u, \"bf16\": %u, \"f32\": %u}",
                            r->n_matrices[MAT_Q4], r->n_matrices[MAT_Q8], r->n_matrices[MAT_BF16],
                            r->n_matrices[MAT_F32]);
        json_number(b, "shards", checkpoint_n_shards(r->ck));
        json_number(b, "file_bytes", checkpoint_file_bytes(r->ck));
        json_number(b, "text_tensors", r->n_tensors);
        json_number(b, "text_bytes", r->w.mapped_bytes);
        json_number(b, "active_bytes", r->w.active_bytes);
        json_number(b, "skipped_vision", r->w.n_skipped_vision);
        json_number(b, "skipped_mtp", r->w.n_skipped_mtp);
        json_number(b, "skipped_bytes", r->w.skipped_bytes);
        (void)strbuf_puts(b, ", ");
        json_groups(b, r);
        (void)strbuf_puts(b, ", ");
    }
    if (strcmp(r->backend, "cpu") == 0)
        json_memory(b, r);
    else
        json_memory_gpu(b, r);
    if (o->tensors) {
        (void)strbuf_puts(b, ", ");
        json_tensors(b, r);
    }
    (void)strbuf_puts(b, "}\n");
}

static void write_text(strbuf *b, const report *r, const inspect_options *o)
{
    if (o->tensors) text_tensors(b, r);
    if (!o->memory && !o->tensors) {
        text_config(b, r);
        text_groups(b, r);
        (void)strbuf_putc(b, '\n');
    }
    if (o->memory || !o->tensors) text_memory(b, r);
}

static calla_status write_report(strbuf *out, const report *r, const inspect_options *o,
                                 calla_error *err)
{
    calla_status st = CALLA_OK;
    if (o->schedule) {
        if (o->json) (void)strbuf_putc(out, '{');
        st = inspect_schedule(out, &r->shape, inspect_chip(o->chip), r->n_ctx, o->json != 0, err);
        if (o->json) (void)strbuf_puts(out, "}\n");
    } else if (o->json) {
        write_json(out, r, o);
    } else {
        write_text(out, r, o);
    }
    return st;
}

/* Needs no checkpoint: the real model's shape is known. */
static calla_status predict(strbuf *out, const inspect_options *o, const char *dir,
                            calla_error *err)
{
    report r = {0};
    calla_status st =
        dir == NULL ? synth_shape(&r.shape, "full", 0, err) : collect(&r, o, dir, err);
    if (st == CALLA_OK)
        st = inspect_predict(out, &r.shape, inspect_chip(o->chip), o->json != 0, err);
    release(&r);
    return st;
}

static calla_status inspect(strbuf *out, const inspect_options *o, const char *dir,
                            calla_error *err)
{
    report r = {0};
    if (o->predict) return predict(out, o, dir, err);
    calla_status st = collect(&r, o, dir, err);
    if (st == CALLA_OK) st = write_report(out, &r, o, err);
    release(&r);
    return st;
}

static int cmd_inspect(int argc, char **argv)
{
    inspect_options o = {.common = CLI_COMMON_DEFAULTS};
    int n_args = 0;
    calla_error err;
    strbuf out = {0};
    int rc = cli_parse(&cli_inspect, argc, argv, &o, &n_args);
    if (rc >= 0) return rc;
    if (o.schedule && strcmp(o.common.backend, "cpu") == 0)
        return cli_usage_error(&cli_inspect, "--schedule: the cpu backend has no schedule");
    if (n_args > 0 && o.common.model != NULL)
        return cli_usage_error(&cli_inspect, "expected DIR or -m, found both");
    if (inspect(&out, &o, n_args > 0 ? argv[1] : o.common.model, &err) != CALLA_OK) {
        strbuf_deinit(&out);
        return cli_fail(&cli_inspect, &err);
    }
    if (out.failed) {
        cli_error(&cli_inspect, "no memory for the output");
        rc = CLI_FAILED;
    } else {
        (void)fwrite(out.data, 1, out.len, stdout);
        rc = cli_stdout_ok() ? CLI_OK : CLI_FAILED;
        if (rc != CLI_OK) cli_error(&cli_inspect, "cannot write the output: %s", strerror(errno));
    }
    strbuf_deinit(&out);
    return rc;
}
