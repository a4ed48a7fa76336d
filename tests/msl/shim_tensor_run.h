/* shim_tensor_run.h - tensors and matmul2d on the emulator (shim_matrix_run.h): one simdgroup,
 * bfloat with bfloat (macOS 26.2), bfloat in memory with codes in memory (26.4, CALLA_RUNG 3). */
#ifndef CALLA_TESTS_MSL_SHIM_TENSOR_RUN_H
#define CALLA_TESTS_MSL_SHIM_TENSOR_RUN_H

namespace metal
{

template <typename T> using remove_addrspace_t = T;
struct execution_simdgroup {
};
struct tensor_inline {
};
struct uint4b_format {
};

template <typename I, uint N> struct dextents {
    static_assert(N == 2, "tensors of two dimensions");
    I n[2]; /* columns, rows */
    dextents(I columns, I rows) : n{columns, rows}
    {
    }
};

/* Bits of an element, and what a tensor of them is made from. */
template <typename T> struct msl_element;
template <> struct msl_element<bfloat> {
    enum : uint { BITS = 16, ALIGN = 16 };
    typedef bfloat from;
};
template <> struct msl_element<uint4b_format> {
    enum : uint { BITS = 4, ALIGN = 128 };
    typedef uchar from;
};

/* Rows of memory, from a place on. */
struct msl_rows {
    const uchar *base;
    int stride, x, y, columns, rows; /* elements; columns and rows: of the whole */
};

template <typename T> struct msl_slice {
    msl_rows r;
};

static inline void msl_must_be(bool c, const char *what)
{
    if (!c) simt_violation(simt_self, "tensor: %s", what);
}

template <typename T, typename X, typename KIND> struct tensor {
    typedef T element;
    msl_rows r;
    tensor(typename msl_element<T>::from *p, X size)
        : r{reinterpret_cast<const uchar *>(p), size.n[0], 0, 0, size.n[0], size.n[1]}
    {
        const uint row_bytes = (uint)size.n[0] * msl_element<T>::BITS / 8;
        msl_must_be(size.n[0] > 0 && size.n[1] > 0, "no elements");
        msl_must_be(row_bytes % msl_element<T>::ALIGN == 0, "rows that are not aligned");
        msl_must_be((uintptr_t)p % msl_element<T>::ALIGN == 0, "a base that is not aligned");
    }
    msl_slice<T> slice(int x, int y)
    {
        msl_must_be(x >= 0 && x < r.columns && y >= 0 && y < r.rows, "a slice outside");
        msl_slice<T> s = {r};
        s.r.x += x;
        s.r.y += y;
        return s;
    }
};

} /* namespace metal */

namespace mpp
{
namespace tensor_ops
{

/* A class of constants, and a function of the same name that makes a number of them: C++17 has no
 * template arguments of class type, which Metal's compiler takes. */
struct matmul2d_descriptor {
    enum class mode { multiply, multiply_accumulate };
};
struct msl_what {
    uint m, n, k;
    bool left_turned, right_turned, relaxed, accumulates;
};
constexpr ulong
matmul2d_descriptor(int m, int n, int k, bool left_turned, bool right_turned, bool relaxed,
                    enum matmul2d_descriptor::mode mode = matmul2d_descriptor::mode::multiply)
{
    return (ulong)m | (ulong)n << 12 | (ulong)k << 24 | (ulong)left_turned << 40 |
           (ulong)right_turned << 41 | (ulong)relaxed << 42 |
           (ulong)(mode == matmul2d_descriptor::mode::multiply_accumulate) << 43;
}
constexpr msl_what msl_unpack(ulong d)
{
    return {(uint)(d & 4095u),    (uint)(d >> 12 & 4095u), (uint)(d >> 24 & 4095u),
            (d >> 40 & 1u) != 0u, (d >> 41 & 1u) != 0u,    (d >> 42 & 1u) != 0u,
            (d >> 43 & 1u) != 0u};
}

struct msl_left {
};
struct msl_right {
};
template <typename A, typename B> struct is_same {
    enum : bool { YES = false };
};
template <typename A> struct is_same<A, A> {
    enum : bool { YES = true };
};

/* A lane's part of ROWS x COLS, as it lies in memory: 16 x 16 fragments, row by row. A and B: the
 * operands' types of a destination. */
template <typename T, uint ROWS, uint COLS, typename A, typename B> struct msl_cooperative {
    enum : uint { CAPACITY = ROWS * COLS / 32 };
    T v[CAPACITY];
    msl_cooperative()
    {
        for (uint i = 0; i < CAPACITY; i++)
            v[i] = (T)MSL_NAN;
    }
    T &operator[](uint i)
    {
        if (i >= CAPACITY)
            simt_violation(simt_self, "element %u of a cooperative tensor of %u", i,
                           (uint)CAPACITY);
        return v[i];
    }
    static uint lane(uint row, uint col)
    {
        if (msl_plant == MSL_PLANT_LANES_16) return msl_holder(row % 8, col % 16 / 4 * 2 ^ 2);
        return msl_holder(row % 8, col % 16 / 2);
    }
    static uint element(uint row, uint col)
    {
        const bool other = msl_plant == MSL_PLANT_FRAGMENTS && ROWS * COLS == 512;
        if (other && is_same<B, msl_right>::YES)
            row ^= ROWS == 32 ? 16 : 0, col ^= COLS == 32 ? 16 : 0;
        return 8 * (row / 16 * (COLS / 16) + col / 16) + 4 * (row / 8 % 2) + col % 4;
    }
};
/* Where a tensor's elements are read: value(row, col), NaN beyond its extents. */
template <typename T> struct msl_operand;
template <uint ROWS, uint COLS, typename A, typename B>
struct msl_operand<msl_cooperative<bfloat, ROWS, COLS, A, B>> {
    typedef msl_cooperative<bfloat, ROWS, COLS, A, B> type;
    type *lanes[SIMT_LANES];
    void set(uint lane, void *p)
    {
        lanes[lane] = static_cast<type *>(p);
    }
    void check(uint, uint) const
    {
    }
    float value(uint row, uint col) const
    {
        return (float)lanes[type::lane(row, col)]->v[type::element(row, col)];
    }
};

/* All of n bytes at p belong to a binding of the launch, or to threadgroup memory. */
static inline void msl_must_own(const uchar *p, ulong n)
{
    const simt_group *g = simt_self->group;
    for (uint i = 0; i < SIMT_BINDINGS; i++) {
        const simt_binding *b = &g->launch->bind[i];
        if (b->ptr != nullptr && p >= b->ptr && p + n <= b->ptr + b->bytes) return;
    }
    if (p < g->tg || p + n > g->tg + SIMT_TG_BYTES)
        simt_violation(simt_self, "matmul2d reads outside of every buffer");
}

template <typename T> struct msl_operand<metal::msl_slice<T>> {
    metal::msl_rows r;
    void set(uint lane, void *p)
    {
        const metal::msl_rows *x = &static_cast<metal::msl_slice<T> *>(p)->r;
        if (lane == 0) r = *x;
        if (x->base != r.base || x->stride != r.stride || x->x != r.x || x->y != r.y ||
            x->columns != r.columns || x->rows != r.rows)
            simt_violation(simt_self, "matmul2d: lanes 0 and %u name different tensors", lane);
    }
    /* A static k reads all its columns, whatever the extents say; rows are clipped. */
    void check(uint rows, uint cols) const
    {
        metal::msl_must_be(r.x + (int)cols <= r.columns, "k goes beyond the columns");
        const int last = r.y + (int)rows < r.rows ? r.y + (int)rows : r.rows;
        const ulong first_bit = ((ulong)r.y * (uint)r.stride + (uint)r.x) * BITS;
        const ulong end_bit = ((ulong)(last - 1) * (uint)r.stride + (uint)r.x + cols) * BITS;
        msl_must_own(r.base + first_bit / 8, end_bit / 8 - first_bit / 8);
    }
    float value(uint row, uint col) const
    {
        if (r.y + (int)row >= r.rows) return MSL_NAN;
        uint x_col = (uint)r.x + col;
        if (msl_plant == MSL_PLANT_LARGE && x_col >= 1024) x_col -= 1024;
        if (msl_plant == MSL_PLANT_LAST_ROWS && r.y + (int)row + 4 >= r.rows) return 0;
        const ulong i = (ulong)(r.y + (int)row) * (uint)r.stride + x_col;
        if (BITS == 4)
            return (float)(r.base[i / 2] >> 4 * ((i ^ (msl_plant == MSL_PLANT_NIBBLES)) % 2) & 15);
        bfloat x;
        memcpy(&x, r.base + 2 * i, 2);
        return (float)x;
    }
    enum : uint { BITS = metal::msl_element<T>::BITS };
};

template <typename A, typename B> struct msl_types {
    enum : bool { KNOWN = false };
};
template <uint R, uint C, typename X, uint R2, uint C2, typename Y>
struct msl_types<msl_cooperative<bfloat, R, C, X, msl_left>,
                 msl_cooperative<bfloat, R2, C2, Y, msl_right>> {
    enum : bool { KNOWN = true };
};
#if CALLA_RUNG >= 3
template <> struct msl_types<metal::msl_slice<bfloat>, metal::msl_slice<metal::uint4b_format>> {
    enum : bool { KNOWN = true };
};
#endif

/* The same pointer for the lanes of a group that are at one line of the text. */
static inline const char *msl_site(int line)
{
    static __thread struct {
        int line;
        char text[28];
    } sites[16];
    uint i = 0;
    while (sites[i].line != line && sites[i].line != 0 && i + 1 < 16)
        i++;
    if (sites[i].line != line) {
        sites[i].line = line;
        __builtin_snprintf(sites[i].text, sizeof sites[i].text, "matmul2d line %d", line);
    }
    return sites[i].text;
}

template <ulong WHAT, typename SCOPE> class matmul2d
{
    static constexpr msl_what w = msl_unpack(WHAT);
    static_assert(w.m % 16 == 0 || w.n % 16 == 0, "a side must be a multiple of 16");
    static_assert(w.m % 16 == 0 && w.n % 32 == 0 && w.k % 16 == 0, "no published layout");
    static_assert(!w.left_turned, "not modelled");

    template <typename C> struct call {
        void *left, *right;
        C *to;
    };

    template <typename L, typename R, typename C> static void all(void *const *args)
    {
        msl_operand<L> left;
        msl_operand<R> right;
        call<C> *lanes[SIMT_LANES];
        for (uint i = 0; i < SIMT_LANES; i++) {
            lanes[i] = static_cast<call<C> *>(args[i]);
            left.set(i, lanes[i]->left);
            right.set(i, lanes[i]->right);
        }
        left.check(w.m, w.k);
        right.check(w.right_turned ? w.n : w.k, w.right_turned ? w.k : w.n);
        const bool deaf = msl_plant == MSL_PLANT_NOT_TURNED && w.right_turned;
        static thread_local float a[w.m][w.k], b[w.n][w.k];
        for (uint k = 0; k < w.k; k++) {
            for (uint i = 0; i < w.m; i++)
                a[i][k] = left.value(i, k);
            for (uint i = 0; i < w.n; i++)
                b[i][k] = deaf             ? right.value(i / 16 * 16 + k % 16, k / 16 * 16 + i % 16)
                          : w.right_turned ? right.value(i, k)
                                           : right.value(k, i);
        }
        for (uint row = 0; row < w.m; row++)
            for (uint col = 0; col < w.n; col++) {
                double s = 0; /* the unit's order is its own */
                for (uint k = w.k; k-- > 0;)
                    s += (double)a[row][k] * (double)b[col][k];
                float &to = lanes[C::lane(row, col)]->to->v[C::element(row, col)];
                to = (float)(w.accumulates && msl_plant != MSL_PLANT_OVERWRITES ? (double)to + s
                                                                                : s);
                if (msl_plant == MSL_PLANT_SHORT_SUMS)
                    to = msl_as_type<float>((msl_as_type<uint>(to) + 0x8000u) & 0xffff0000u);
            }
    }

  public:
    template <typename A, typename B, typename C>
    msl_cooperative<A, w.m, w.k, C, msl_left> get_left_input_cooperative_tensor()
    {
        static_assert(w.m == 16 && w.n == 32 && w.k == 16, "no published layout");
        return {};
    }
    template <typename A, typename B, typename C>
    msl_cooperative<B, w.right_turned ? w.n : w.k, w.right_turned ? w.k : w.n, C, msl_right>
    get_right_input_cooperative_tensor()
    {
        static_assert(w.m == 16 && w.n == 32 && w.k == 16, "no published layout");
        return {};
    }
    template <typename A, typename B, typename C>
    msl_cooperative<C, w.m, w.n, A, B> get_destination_cooperative_tensor()
    {
        static_assert(msl_types<A, B>::KNOWN, "matmul2d of these types");
        return {};
    }
    /* Operands are lvalues that are not const. */
    template <typename L, typename R>
    void run(L &left, R &right, msl_cooperative<float, w.m, w.n, L, R> &to,
             int line = __builtin_LINE())
    {
        typedef msl_cooperative<float, w.m, w.n, L, R> C;
        static_assert(sizeof(SCOPE) != 0 && msl_types<L, R>::KNOWN, "matmul2d of these types");
        call<C> x = {&left, &right, &to};
        metal::msl_collective(&x, msl_site(line), all<L, R, C>);
    }
};

} /* namespace tensor_ops */
} /* namespace mpp */

#endif
