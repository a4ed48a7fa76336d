#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* POLLRDHUP */
#endif

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/pool.h"
#include "server/http_priv.h"

#define TICK_MS 500 /* deadlines are seconds */

/* What one turn polls and finds; as large as the slots. */
typedef struct watch {
    struct pollfd *fds; /* [n]; fds[0] is the pipe */
    size_t *slots;      /* [n] */
    uint64_t *serials;  /* [n] */
    http_req **gone;    /* [n_gone], each with a reference */
    size_t n, n_gone;
} watch;

/* ---- Phases ------------------------------------------------------------------------------- */

static bool is_watched(conn_phase p)
{
    return p == CONN_WORK || p == CONN_REPLY;
}

void http_conn_phase(http_conn *c, http_server *s, conn_phase phase, double seconds)
{
    bool wake = false;
    pthread_mutex_lock(&s->lock);
    if (c->phase != CONN_CLOSED) {
        wake = is_watched(phase) && !is_watched(c->phase);
        c->phase = phase;
        c->deadline = seconds > 0.0 ? time_now() + seconds : 0.0;
    }
    pthread_mutex_unlock(&s->lock);
    if (wake) http_monitor_wake(s);
}

void http_monitor_wake(const http_server *s)
{
    const char byte = 0;
    /* A full pipe has woken it already. */
    while (write(s->wake[1], &byte, 1) < 0 && errno == EINTR) {
    }
}

void http_req_set_gone(http_req *r)
{
    pthread_mutex_lock(&r->lock);
    r->gone = true;
    if (r->hangup && !r->called) {
        const http_hangup_fn fn = r->hangup;
        void *const user = r->hangup_user;
        r->called = r->calling = true;
        pthread_mutex_unlock(&r->lock);
        fn(user);
        pthread_mutex_lock(&r->lock);
        r->calling = false;
    }
    pthread_cond_broadcast(&r->cond);
    pthread_mutex_unlock(&r->lock);
}

/* ---- One turn ----------------------------------------------------------------------------- */

static short events_of(const http_conn *c)
{
#ifdef POLLRDHUP
    (void)c;
    return POLLRDHUP;
#else
    return c->pending ? 0 : POLLIN;
#endif
}

/* Call with the server's lock. Returns poll's timeout. */
static int collect(const http_server *s, watch *w)
{
    bool any = false;
    w->n = 1;
    w->fds[0] = (struct pollfd){.fd = s->wake[0], .events = POLLIN};
    for (size_t i = 0; i < s->n_conns; i++) {
        const http_conn *c = &s->conns[i];
        any = any || c->phase != CONN_FREE;
        if (!is_watched(c->phase)) continue;
        w->fds[w->n] = (struct pollfd){.fd = c->fd, .events = events_of(c)};
        w->slots[w->n] = i;
        w->serials[w->n++] = c->serial;
    }
    return any ? TICK_MS : -1;
}

/* Is there an end of file? Notes bytes that hide it. */
static bool hung_up(http_conn *c, short revents)
{
    if (revents & (POLLERR | POLLHUP | POLLNVAL)) return true;
#ifdef POLLRDHUP
    (void)c;
    return (revents & POLLRDHUP) != 0;
#else
    char byte;
    const ssize_t n = recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    c->pending = n > 0;
    return n == 0;
#endif
}

static void note_gone(http_conn *c, watch *w)
{
    (void)shutdown(c->fd, SHUT_RDWR); /* libmicrohttpd's thread may wait in send */
    c->phase = CONN_CLOSED;
    c->deadline = 0.0;
    if (!c->req) return;
    http_req_ref(c->req);
    w->gone[w->n_gone++] = c->req;
}

static void handle_deadline(http_conn *c, watch *w)
{
    switch (c->phase) {
    case CONN_HEADERS:
    case CONN_BODY:
        if (c->req) {
            c->req->status = 408;
            c->req->complete = true;
        }
        http_reply_raw(c->req, c->fd, 408,
                       c->phase == CONN_BODY ? "the request's body did not arrive in time"
                                             : "the request's headers did not arrive in time");
        c->phase = CONN_CLOSED;
        c->deadline = time_now() + HTTP_LINGER_SECONDS;
        break;
    case CONN_REPLY:
    case CONN_LAST:
        note_gone(c, w);
        break;
    case CONN_IDLE:
    case CONN_CLOSED:
        (void)shutdown(c->fd, SHUT_RDWR);
        c->phase = CONN_CLOSED;
        c->deadline = 0.0;
        break;
    case CONN_FREE:
    case CONN_WORK:
        break;
    }
}

static void turn(http_server *s, watch *w)
{
    const double now = time_now();
    w->n_gone = 0;
    pthread_mutex_lock(&s->lock);
    for (size_t i = 1; i < w->n; i++) {
        http_conn *c = &s->conns[w->slots[i]];
        if (w->fds[i].revents != 0 && c->serial == w->serials[i] && is_watched(c->phase) &&
            hung_up(c, w->fds[i].revents))
            note_gone(c, w);
    }
    const bool quiet = atomic_load(&s->quiet);
    for (size_t i = 0; i < s->n_conns; i++) {
        http_conn *c = &s->conns[i];
        if ((c->deadline > 0.0 && now >= c->deadline) || (quiet && c->phase == CONN_IDLE))
            handle_deadline(c, w);
    }
    http_req *finished = s->finished;
    s->finished = NULL;
    pthread_mutex_unlock(&s->lock);

    for (size_t i = 0; i < w->n_gone; i++) {
        http_req_set_gone(w->gone[i]);
        http_req_unref(w->gone[i], false);
    }
    while (finished) {
        http_req *next = finished->next_finished;
        http_req_finish(finished);
        finished = next;
    }
}

static void *monitor_main(void *arg)
{
    http_server *s = arg;
    const size_t n = s->n_conns + 1;
    watch w = {.fds = mem_array(n, sizeof *w.fds),
               .slots = mem_array(n, sizeof *w.slots),
               .serials = mem_array(n, sizeof *w.serials),
               .gone = mem_array(n, sizeof(http_req *))};
    bool stopping = !w.fds || !w.slots || !w.serials || !w.gone;
    while (!stopping) {
        char bytes[64];
        pthread_mutex_lock(&s->lock);
        const int timeout_ms = collect(s, &w);
        pthread_mutex_unlock(&s->lock);
        (void)poll(w.fds, (nfds_t)w.n, timeout_ms);
        while (read(s->wake[0], bytes, sizeof bytes) > 0) {
        }
        turn(s, &w);
        pthread_mutex_lock(&s->lock);
        stopping = s->stopping;
        pthread_mutex_unlock(&s->lock);
    }
    mem_free(w.fds);
    mem_free(w.slots);
    mem_free(w.serials);
    mem_free(w.gone);
    return NULL;
}

/* ---- Start and stop ----------------------------------------------------------------------- */

calla_status http_monitor_start(http_server *s, calla_error *err)
{
    if (pipe(s->wake) != 0)
        return err_set(err, CALLA_ERR_IO, "http: cannot make a pipe: %s", strerror(errno));
    for (int i = 0; i < 2; i++) {
        (void)fcntl(s->wake[i], F_SETFD, FD_CLOEXEC);
        (void)fcntl(s->wake[i], F_SETFL, O_NONBLOCK);
    }
    if (!thread_start(&s->monitor, monitor_main, s))
        return err_set(err, CALLA_ERR_IO, "http: cannot start a thread");
    s->has_monitor = true;
    return CALLA_OK;
}

void http_monitor_stop(http_server *s)
{
    if (s->has_monitor) {
        pthread_mutex_lock(&s->lock);
        s->stopping = true;
        pthread_mutex_unlock(&s->lock);
        http_monitor_wake(s);
        (void)pthread_join(s->monitor, NULL);
    }
    for (int i = 0; i < 2; i++)
        if (s->wake[i] >= 0) (void)close(s->wake[i]);
}
