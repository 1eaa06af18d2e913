/* A preloaded library that makes the n-th call of one function fail, refuses inline data and
 * relaxed ordering as some devices do, keeps READs within memory windows as software RoCE does not,
 * and notes the values that some calls ask for. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <time.h>

/* The version of dlsym that each glibc has. */
#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#else
#define OLDEST "GLIBC_2.17"
#endif

static const char *_Atomic failing;
static atomic_long calls_left;

/* Makes the n-th call of `function` from here on fail, and no other call. */
void fail_call(const char *function, long n)
{
	atomic_store(&calls_left, n);
	atomic_store(&failing, function);
}

/* Returns whether the call has failed, and lets all calls pass. */
int has_failed(void)
{
	atomic_store(&failing, NULL);
	return atomic_load(&calls_left) <= 0;
}

/* What calls ask for, in order. The notes go on in `noted` when there is no more room. */
static struct {
	const char *function;
	long value;
} notes[256];
static atomic_long noted;

/* Copies the values of `function` since the last call, and returns their number. */
long take_notes(const char *function, long *values)
{
	long count = 0, all = atomic_exchange(&noted, 0);
	for (long i = 0; i < all && i < 256; i++)
		if (!strcmp(notes[i].function, function))
			values[count++] = notes[i].value;
	return count;
}

static void note(const char *function, long value)
{
	long i = atomic_fetch_add(&noted, 1);
	if (i < 256) {
		notes[i].function = function;
		notes[i].value = value;
	}
}

/* The bytes of inline data that a queue pair is granted. */
static atomic_long most_inline = 1 << 20;

void limit_inline(long bytes)
{
	atomic_store(&most_inline, bytes);
}

static int fails(const char *function)
{
	const char *name = atomic_load(&failing);
	return name && !strcmp(name, function) && atomic_fetch_sub(&calls_left, 1) == 1;
}

/* A function here, and the one of the same name behind it. */
struct wrapped {
	const char *name;
	void *here;
	void *_Atomic *next;
	struct wrapped *others;
};

static struct wrapped *all;

static void *real_dlsym(void *handle, const char *name)
{
	static void *(*_Atomic next)(void *, const char *);
	if (!next)
		next = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", OLDEST);
	return next(handle, name);
}

/* A program that opens a library finds the functions here, too. */
void *dlsym(void *handle, const char *name)
{
	void *found = real_dlsym(handle, name);
	for (struct wrapped *one = all; found && handle != RTLD_NEXT && one; one = one->others) {
		if (!strcmp(one->name, name)) {
			atomic_store(one->next, found == one->here ? NULL : found);
			return one->here;
		}
	}
	return found;
}

#define WRAP(result, name, error, failure, parameters, arguments) \
	WRAP_AFTER(, result, name, error, failure, parameters, arguments)

/* `before` may pass the call on, or refuse it. */
#define WRAP_AFTER(before, result, name, error, failure, parameters, arguments) \
	result name parameters;                                               \
	static void *_Atomic next_##name;                                     \
	static struct wrapped wrapped_##name = {#name, (void *)name, &next_##name}; \
	__attribute__((constructor)) static void wrap_##name(void)            \
	{                                                                     \
		wrapped_##name.others = all;                                  \
		all = &wrapped_##name;                                        \
	}                                                                     \
	result name parameters                                                \
	{                                                                     \
		result(*next) parameters;                                     \
		if (!next_##name)                                             \
			next_##name = real_dlsym(RTLD_NEXT, #name);           \
		next = (result(*) parameters)next_##name;                     \
		before;                                                       \
		if (fails(#name)) {                                           \
			errno = error;                                        \
			return failure;                                       \
		}                                                             \
		return next arguments;                                        \
	}

WRAP(int, pthread_create, EAGAIN, EAGAIN,
     (pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *data),
     (thread, attr, run, data))
WRAP(int, socket, EMFILE, -1, (int domain, int type, int protocol), (domain, type, protocol))
WRAP(int, accept4, ENFILE, -1, (int fd, struct sockaddr *peer, socklen_t *size, int flags),
     (fd, peer, size, flags))
WRAP(int, epoll_create1, EMFILE, -1, (int flags), (flags))
WRAP(int, epoll_ctl, ENOSPC, -1, (int fd, int op, int of, struct epoll_event *event),
     (fd, op, of, event))
WRAP(int, eventfd, ENFILE, -1, (unsigned int count, int flags), (count, flags))
WRAP(int, timerfd_create, EMFILE, -1, (int clock, int flags), (clock, flags))
WRAP(void *, mmap, ENOMEM, MAP_FAILED,
     (void *at, size_t length, int access, int flags, int fd, off_t offset),
     (at, length, access, flags, fd, offset))

/* Only that of the traffic class fails. */
WRAP_AFTER(if (level != IPPROTO_IP || option != IP_TOS) return next(fd, level, option, value, size),
	   int, setsockopt, EPERM, -1,
	   (int fd, int level, int option, const void *value, socklen_t size),
	   (fd, level, option, value, size))

/* The beginning of ibv_qp_init_attr. */
struct queue_pair {
	void *context, *send_cq, *recv_cq, *srq;
	uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
};

/* A device that keeps READs within memory windows: the software of the reading side replaces the key
 * of a READ that leaves its window by a wrong key, which the kernel refuses. Both sides of a
 * connection are in this process, and all its queue pairs belong to one driver. */
enum { READ = 4, LOCAL_INV = 7, BIND_MW = 8 };

struct element {
	uint64_t addr;
	uint32_t length, lkey;
};

/* ibv_send_wr of a READ or a bind. */
struct request {
	uint64_t wr_id;
	struct request *next;
	struct element *elements;
	int count;
	uint32_t opcode, flags, invalidated;
	uint64_t remote_addr;
	uint32_t rkey, others[7];
	void *window;
	uint32_t new_key;
	void *region;
	uint64_t start, length;
	uint32_t access;
};

typedef int post_send(void *qp, struct request *request, struct request **bad);

/* The place of post_send in ibv_context. */
enum { POST_SEND = 1 + 25 };

#ifndef KEEP_BOUNDS
#define KEEP_BOUNDS 0
#endif
static atomic_long are_bounds_kept = KEEP_BOUNDS;
static atomic_long binds;
static post_send *_Atomic drivers_post_send;
static pthread_mutex_t of_windows = PTHREAD_MUTEX_INITIALIZER;
static struct {
	uint32_t key;
	uint64_t start, end;
} windows[256];
static int window_count;

static void bind_window(const struct request *request)
{
	int i = 0;
	/* The low 8 bits of a key differ from bind to bind. */
	while (i < window_count && windows[i].key >> 8 != request->new_key >> 8)
		i++;
	if (i == window_count && i < 255)
		window_count++;
	windows[i].key = request->new_key;
	windows[i].start = request->start;
	windows[i].end = request->start + request->length;
}

static int leaves_window(const struct request *request)
{
	uint64_t end = request->remote_addr;
	for (int i = 0; i < request->count; i++)
		end += request->elements[i].length;
	for (int i = 0; i < window_count; i++)
		if (windows[i].key >> 8 == request->rkey >> 8)
			return request->remote_addr < windows[i].start || end > windows[i].end;
	return 0;
}

static int post_within_windows(void *qp, struct request *first, struct request **bad)
{
	for (struct request *request = first; request; request = request->next) {
		pthread_mutex_lock(&of_windows);
		if (request->opcode == BIND_MW) {
			atomic_fetch_add(&binds, 1);
			note("bind_mw", request->length);
			bind_window(request);
		} else if (request->opcode == LOCAL_INV) {
			note("local_inv", request->invalidated);
		} else if (request->opcode == READ && leaves_window(request)) {
			request->rkey ^= 0x80;
		}
		pthread_mutex_unlock(&of_windows);
	}
	return ((post_send *)drivers_post_send)(qp, first, bad);
}

#if KEEP_BOUNDS
__attribute__((destructor)) static void print_binds(void)
{
	fprintf(stderr, "binds: %ld\n", binds);
}
#endif

void keep_bounds(long are_kept)
{
	atomic_store(&are_bounds_kept, are_kept);
}

/* A queue pair is about to be created in the domain `pd`, whose first field is the context. */
static void watch_posts(void ***pd)
{
	void **context = pd && atomic_load(&are_bounds_kept) ? *pd : NULL;
	void *here = (void *)post_within_windows;
	if (!context || context[POST_SEND] == here)
		return;
	atomic_store(&drivers_post_send, (post_send *)context[POST_SEND]);
	__atomic_store_n(&context[POST_SEND], here, __ATOMIC_SEQ_CST);
}

static int refuses(const struct queue_pair *attr)
{
	note("rdma_create_qp", attr->max_inline_data);
	return attr->max_inline_data > (unsigned long)atomic_load(&most_inline);
}

/* The beginning of rdma_conn_param. */
struct connection {
	const void *private_data;
	uint8_t private_data_len, responder_resources, initiator_depth;
};

static void note_reads(const struct connection *param)
{
	note("rdma_conn_param", param->responder_resources << 8 | param->initiator_depth);
}

#define OBJECT(name, parameters, arguments) WRAP(void *, name, ENOMEM, NULL, parameters, arguments)
#define CALL(name, parameters, arguments) WRAP(int, name, ENOMEM, -1, parameters, arguments)
#define NOTED(before, name, parameters, arguments) \
	WRAP_AFTER(before, int, name, ENOMEM, -1, parameters, arguments)

OBJECT(rdma_create_event_channel, (void), ())
CALL(rdma_create_id, (void *channel, void **id, void *context, int space),
     (channel, id, context, space))
NOTED(watch_posts(pd); if (refuses(attr)) { errno = EINVAL; return -1; }, rdma_create_qp,
      (void *id, void *pd, struct queue_pair *attr), (id, pd, attr))
WRAP_AFTER(watch_posts(pd), void *, ibv_create_qp, ENOMEM, NULL,
	   (void *pd, void *attr), (pd, attr))
NOTED(note_reads(param), rdma_connect, (void *id, struct connection *param),
      (id, param))
NOTED(note_reads(param), rdma_accept, (void *id, struct connection *param),
      (id, param))
/* Only that of the traffic class fails, which is option 0 of level 0. */
WRAP_AFTER(if (level || option) return next(id, level, option, value, size),
	   int, rdma_set_option, EINVAL, -1,
	   (void *id, int level, int option, void *value, size_t size),
	   (id, level, option, value, size))
OBJECT(ibv_alloc_pd, (void *context), (context))
OBJECT(ibv_create_comp_channel, (void *context), (context))
WRAP_AFTER(note("ibv_create_cq", vector), void *, ibv_create_cq, ENOMEM, NULL,
	   (void *context, int cqe, void *data, void *channel, int vector),
	   (context, cqe, data, channel, vector))
OBJECT(ibv_create_srq, (void *pd, void *attr), (pd, attr))
WRAP_AFTER(note("ibv_reg_mr", access), void *, ibv_reg_mr, ENOMEM, NULL,
	   (void *pd, void *at, size_t length, int access), (pd, at, length, access))

WRAP_AFTER(note("ibv_dereg_mr", 0), int, ibv_dereg_mr, EINVAL, EINVAL, (void *region), (region))

/* IBV_ACCESS_RELAXED_ORDERING. libibverbs calls the second function from the first as well. */
#define RELAXED (1u << 20)
static atomic_long is_relaxed_refused;

void refuse_relaxed(long is_refused)
{
	atomic_store(&is_relaxed_refused, is_refused);
}

WRAP_AFTER(if (access & RELAXED) {
		   note("ibv_reg_mr", access);
		   if (atomic_load(&is_relaxed_refused)) { errno = EINVAL; return NULL; }
	   },
	   void *, ibv_reg_mr_iova2, ENOMEM, NULL,
	   (void *pd, void *at, size_t length, uint64_t iova, unsigned int access),
	   (pd, at, length, iova, access))
