/* A preloaded library that makes the n-th call of one function fail, blocks the calls of another,
 * refuses inline data and relaxed ordering as some devices do, has thread domains and a NUMA node and keeps READs within
 * memory windows as others do, and notes the values that some calls ask for. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
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
int take_failed(void)
{
	atomic_store(&failing, NULL);
	return atomic_load(&calls_left) <= 0;
}

#define MAX_RECORDED 1024

/* What calls ask for, in order. The notes go on in `noted` when there is no more room. */
static struct {
	const char *function;
	long value;
} notes[MAX_RECORDED];
static atomic_long noted;

/* Copies the values of `function` since the last call, and returns their number. */
long take_recorded(const char *function, long *values)
{
	long count = 0, all = atomic_exchange(&noted, 0);
	for (long i = 0; i < all && i < MAX_RECORDED; i++)
		if (!strcmp(notes[i].function, function))
			values[count++] = notes[i].value;
	return count;
}

static void note(const char *function, long value)
{
	long i = atomic_fetch_add(&noted, 1);
	if (i < MAX_RECORDED) {
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

static pthread_mutex_t of_blocking = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t unblocked = PTHREAD_COND_INITIALIZER;
static const char *_Atomic blocking;
static atomic_long blocked;

/* Makes each call of `function` from here on wait. With NULL, lets the waiting calls go on. */
void block_calls(const char *function)
{
	pthread_mutex_lock(&of_blocking);
	atomic_store(&blocking, function);
	pthread_cond_broadcast(&unblocked);
	pthread_mutex_unlock(&of_blocking);
}

/* Returns the number of calls that wait. */
long blocked_calls(void)
{
	return atomic_load(&blocked);
}

static void wait_if_blocked(const char *function)
{
	const char *name = atomic_load(&blocking);
	if (!name || strcmp(name, function))
		return;
	pthread_mutex_lock(&of_blocking);
	atomic_fetch_add(&blocked, 1);
	while (atomic_load(&blocking) == name)
		pthread_cond_wait(&unblocked, &of_blocking);
	atomic_fetch_sub(&blocked, 1);
	pthread_mutex_unlock(&of_blocking);
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
		wait_if_blocked(#name);                                       \
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

#ifndef KEEP_BOUNDS
#define KEEP_BOUNDS 0
#endif
static atomic_long are_bounds_kept = KEEP_BOUNDS;
static atomic_long binds;
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

static void keep_within_windows(struct request *request)
{
	pthread_mutex_lock(&of_windows);
	for (; request; request = request->next) {
		if (request->opcode == BIND_MW) {
			atomic_fetch_add(&binds, 1);
			note("bind_mw", request->length);
			bind_window(request);
		} else if (request->opcode == LOCAL_INV) {
			note("local_inv", request->invalidated);
		} else if (request->opcode == READ && leaves_window(request)) {
			request->rkey ^= 0x80;
		}
	}
	pthread_mutex_unlock(&of_windows);
}

#if KEEP_BOUNDS
__attribute__((destructor)) static void print_binds(void)
{
	fprintf(stderr, "binds: %ld\n", binds);
}
#endif

void check_window_bounds(long are_kept)
{
	atomic_store(&are_bounds_kept, are_kept);
}

/* A function of a provider is at this word of an open ibv_context, or before it. */
enum {
	ALLOC_PARENT_DOMAIN = -26,
	DEALLOC_TD = -25,
	ALLOC_TD = -24,
	POST_SRQ_RECV = 21,
	POST_SEND = 26,
	POST_RECV = 27,
};

typedef int post(void *queue, void *requests, void **bad);

static post *real_post_recv, *real_post_srq_recv, *real_post_send;

/* The number of requests in a list, each of which has the next one in its second word. */
static long length(void **request)
{
	long count = 0;
	for (; request; request = request[1])
		count++;
	return count;
}

static int post_recv(void *queue, void *requests, void **bad)
{
	note("post_recv", length(requests));
	return real_post_recv(queue, requests, bad);
}

static int post_srq_recv(void *queue, void *requests, void **bad)
{
	note("post_srq_recv", length(requests));
	return real_post_srq_recv(queue, requests, bad);
}

static int post_send(void *queue, void *requests, void **bad)
{
	note("post_send", length(requests));
	if (atomic_load(&are_bounds_kept))
		keep_within_windows(requests);
	return real_post_send(queue, requests, bad);
}

/* What the provider answers: its own answer (-1), success (0), or an error number. */
static atomic_long thread_domain_error = -1, parent_domain_error = -1;

void set_domain_replies(long thread_domain, long parent_domain)
{
	atomic_store(&thread_domain_error, thread_domain);
	atomic_store(&parent_domain_error, parent_domain);
}

/* What happens to thread domain n is noted as 10 * n and one of these, a refusal as a negative
 * error number. */
enum {
	THREAD_DOMAIN_MADE = 1,
	PARENT_MADE,
	QUEUE_PAIR_MADE,
	QUEUE_PAIR_DESTROYED,
	PARENT_FREED,
	THREAD_DOMAIN_FREED,
	DOMAIN_FREED,
};

static void note_domain(long number, long step)
{
	note("thread_domain", 10 * number + step);
}

/* It begins as an ibv_td. */
struct thread_domain {
	void *context;
	long number;
};

/* It begins as an ibv_pd, with the handle of the domain below it. */
struct parent_domain {
	void *context;
	uint32_t handle;
	long number;
	/* The domain below it, until that is freed. */
	void *below;
	int is_freed;
	struct parent_domain *others;
};

static struct parent_domain *parents;
static pthread_mutex_t parents_lock = PTHREAD_MUTEX_INITIALIZER;

static struct parent_domain *parent(void *domain)
{
	struct parent_domain *one;
	pthread_mutex_lock(&parents_lock);
	for (one = parents; one && (one != domain || one->is_freed);)
		one = one->others;
	pthread_mutex_unlock(&parents_lock);
	return one;
}

static void *alloc_td(void *context, void *attr)
{
	static atomic_long made;
	struct thread_domain *td;
	long error = atomic_load(&thread_domain_error);
	(void)attr;
	if (error) {
		note("thread_domain", -error);
		errno = error;
		return NULL;
	}
	td = calloc(1, sizeof(*td));
	td->context = context;
	td->number = atomic_fetch_add(&made, 1);
	note_domain(td->number, THREAD_DOMAIN_MADE);
	return td;
}

static int dealloc_td(struct thread_domain *td)
{
	note_domain(td->number, THREAD_DOMAIN_FREED);
	free(td);
	return 0;
}

/* The beginning of ibv_parent_domain_init_attr. */
struct parent_domain_attr {
	struct parent_domain *pd;
	struct thread_domain *td;
	uint32_t comp_mask;
};

static void *alloc_parent_domain(void *context, struct parent_domain_attr *attr)
{
	struct parent_domain *made;
	long error = atomic_load(&parent_domain_error);
	if (error) {
		note("thread_domain", -error);
		errno = error;
		return NULL;
	}
	made = calloc(1, sizeof(*made));
	made->context = context;
	made->handle = attr->pd->handle;
	made->number = attr->td->number;
	made->below = attr->pd;
	pthread_mutex_lock(&parents_lock);
	made->others = parents;
	parents = made;
	pthread_mutex_unlock(&parents_lock);
	note_domain(made->number, PARENT_MADE);
	return made;
}

/* Returns whether this was a parent domain, and notes what is freed. Nothing is given back, so that
 * no other domain gets the address. */
static int free_parent(void *domain)
{
	struct parent_domain *one = parent(domain);
	if (one) {
		one->is_freed = 1;
		note_domain(one->number, PARENT_FREED);
		return 1;
	}
	pthread_mutex_lock(&parents_lock);
	for (one = parents; one; one = one->others) {
		if (one->below == domain) {
			one->below = NULL;
			note_domain(one->number, DOMAIN_FREED);
		}
	}
	pthread_mutex_unlock(&parents_lock);
	return 0;
}

/* Puts the functions above in front of those of the provider, in an open ibv_context. */
static void watch(void **context)
{
	if (context[POST_RECV] != (void *)post_recv) {
		real_post_recv = (post *)context[POST_RECV];
		real_post_srq_recv = (post *)context[POST_SRQ_RECV];
		real_post_send = (post *)context[POST_SEND];
		context[POST_RECV] = (void *)post_recv;
		context[POST_SRQ_RECV] = (void *)post_srq_recv;
		context[POST_SEND] = (void *)post_send;
	}
	if (atomic_load(&thread_domain_error) >= 0) {
		context[ALLOC_TD] = (void *)alloc_td;
		context[DEALLOC_TD] = (void *)dealloc_td;
		context[ALLOC_PARENT_DOMAIN] = (void *)alloc_parent_domain;
	}
}

static void note_queue_pair(void *domain, long step)
{
	struct parent_domain *one = parent(domain);
	if (one)
		note_domain(one->number, step);
}

/* The file that says on which node a device is, instead of that of the kernel. */
static const char *_Atomic node_file;

void set_node_file(const char *file)
{
	atomic_store(&node_file, file);
}

int open64(const char *path, int flags, ...)
{
	static int (*_Atomic next)(const char *, int, ...);
	const char *instead = atomic_load(&node_file);
	va_list more;
	int mode;
	if (!next)
		next = (int (*)(const char *, int, ...))real_dlsym(RTLD_NEXT, "open64");
	va_start(more, flags);
	mode = va_arg(more, int);
	va_end(more);
	if (instead && strstr(path, "/device/numa_node"))
		path = instead;
	return next(path, flags, mode);
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

/* Notes the address of memory for which there are huge pages. */
static void note_long(void *at, size_t length)
{
	if (length >= 2 << 20)
		note("long_mr", (long)at);
}

#define OBJECT(name, parameters, arguments) WRAP(void *, name, ENOMEM, NULL, parameters, arguments)
#define CALL(name, parameters, arguments) WRAP(int, name, ENOMEM, -1, parameters, arguments)
#define NOTED(before, name, parameters, arguments) \
	WRAP_AFTER(before, int, name, ENOMEM, -1, parameters, arguments)

OBJECT(rdma_create_event_channel, (void), ())
CALL(rdma_create_id, (void *channel, void **id, void *context, int space),
     (channel, id, context, space))
NOTED(if (refuses(attr)) { errno = EINVAL; return -1; }
      note_queue_pair(pd, QUEUE_PAIR_MADE), rdma_create_qp,
      (void *id, void *pd, struct queue_pair *attr), (id, pd, attr))
NOTED(note_reads(param), rdma_connect, (void *id, struct connection *param),
      (id, param))
NOTED(note_reads(param), rdma_accept, (void *id, struct connection *param),
      (id, param))
/* Only that of the traffic class fails, which is option 0 of level 0. */
WRAP_AFTER(if (level || option) return next(id, level, option, value, size),
	   int, rdma_set_option, EINVAL, -1,
	   (void *id, int level, int option, void *value, size_t size),
	   (id, level, option, value, size))
WRAP(int, rdma_destroy_id, EINVAL, -1, (void *id), (id))
/* The third word of a queue pair is its domain. */
WRAP_AFTER(note_queue_pair(((void **)qp)[2], QUEUE_PAIR_DESTROYED),
	   int, ibv_destroy_qp, EBUSY, EBUSY, (void *qp), (qp))
WRAP(int, ibv_destroy_cq, EBUSY, EBUSY, (void *cq), (cq))
WRAP_AFTER(watch(context), void *, ibv_alloc_pd, ENOMEM, NULL, (void *context), (context))
WRAP_AFTER(if (free_parent(pd)) return 0, int, ibv_dealloc_pd, EBUSY, EBUSY, (void *pd), (pd))
OBJECT(ibv_create_comp_channel, (void *context), (context))
WRAP_AFTER(note("ibv_create_cq", vector), void *, ibv_create_cq, ENOMEM, NULL,
	   (void *context, int cqe, void *data, void *channel, int vector),
	   (context, cqe, data, channel, vector))
OBJECT(ibv_create_srq, (void *pd, void *attr), (pd, attr))
WRAP_AFTER(note("ibv_reg_mr", access); note_long(at, length), void *, ibv_reg_mr, ENOMEM, NULL,
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
