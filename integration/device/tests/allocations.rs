//! Tests that sending and receiving messages up to the eager size allocates no memory on either
//! side.
#![allow(unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    io::IoSlice,
    thread,
};

use rdmsg::{Config, Endpoint, Polling, tokio as tasks};
use tokio::runtime::Builder;
use toolbox::{DeviceTest, TIME_LIMIT, pair_with};

/// Counts the allocations of each thread, and forwards all calls to the system's allocator.
struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: `System` implements the allocation, so its guarantees hold. The counter is a thread-local
// without a destructor, so using it does not allocate and cannot fail.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller guarantees that `layout` has a nonzero size.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller guarantees that `start` was allocated by this allocator with the same
        // `layout`. This allocator forwards to `System`, so `System` has allocated it.
        unsafe { System.dealloc(start, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the number of allocations that this thread makes during `work`.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = COUNT.get();
    work();
    COUNT.get() - before
}

const ROUNDS: usize = 100;

fn echo(endpoint: &Endpoint, rounds: usize) {
    for _ in 0..rounds {
        let message = endpoint.recv_timeout(TIME_LIMIT).unwrap();
        endpoint.send(&message).unwrap();
    }
}

fn ask(endpoint: &Endpoint, message: &[u8], rounds: usize) {
    for _ in 0..rounds {
        endpoint.send(message).unwrap();
        let answer = endpoint.recv_timeout(TIME_LIMIT).unwrap();
        assert_eq!(answer.len(), message.len());
    }
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(7)))), 1);
    assert_eq!(allocations(|| ()), 0);
}

#[test]
fn eager_messages_allocate_nothing() {
    let _test = DeviceTest::start();
    for polling in [Polling::default(), Polling::Busy, Polling::Event] {
        for len in [0, 64, 16 * 1024] {
            let mut config = Config::default();
            config.polling = polling;
            let (client, server) = pair_with(&config);
            let answering = thread::spawn(move || {
                // Do not count the first 100 messages, because rings and queues grow to their final
                // sizes during these messages.
                echo(&server, 100);
                let count = allocations(|| echo(&server, ROUNDS));
                (count, server)
            });
            let message = vec![7; len];
            ask(&client, &message, 100);
            let asking = allocations(|| ask(&client, &message, ROUNDS));
            let (answering, server) = answering.join().unwrap();
            assert_eq!((asking, answering), (0, 0), "{polling:?}, {len} bytes");
            client.close().unwrap();
            drop(server);
        }
    }
}

#[test]
fn a_full_window_and_its_grants_allocate_nothing() {
    let _test = DeviceTest::start();
    send_at_full_speed(&Config::default(), 0);
}

/// Checks that a sender and a receiver allocate rarely if the sender never pauses. The sender sends
/// the first `ahead` messages before the receiver starts to receive.
///
/// The limit is above 0, because on a busy machine the engine sometimes takes over polling. The
/// engine then notifies threads, and each notification allocates. If each grant allocated, the
/// count would be about 300.
fn send_at_full_speed(config: &Config, ahead: u32) {
    const LIMIT: u64 = 50;
    let (client, server) = pair_with(config);
    for _ in 0..ahead {
        client.send(&[7; 500]).unwrap();
    }
    let reading = thread::spawn(move || {
        let read = |count| {
            for _ in 0..count {
                drop(server.recv_timeout(TIME_LIMIT).unwrap());
            }
        };
        read(1000 + ahead);
        let count = allocations(|| read(5000));
        (count, server)
    });
    let write = |count| {
        for _ in 0..count {
            client.send(&[7; 500]).unwrap();
        }
    };
    write(1000);
    let writing = allocations(|| write(5000));
    let (reading, server) = reading.join().unwrap();
    assert!(
        writing <= LIMIT && reading <= LIMIT,
        "the sender allocated {writing} times, and the receiver {reading} times"
    );
    client.close().unwrap();
    drop(server);
}

#[test]
fn batches_allocate_nothing() {
    let _test = DeviceTest::start();
    let (client, server) = pair_with(&Config::default());
    let batch = [IoSlice::new(&[7; 64]); 10];
    let reading = thread::spawn(move || {
        let read = |count| {
            for _ in 0..count {
                drop(server.recv_timeout(TIME_LIMIT).unwrap());
            }
        };
        read(1000);
        let count = allocations(|| read(5000));
        (count, server)
    });
    let write = |count| {
        for _ in 0..count {
            assert_eq!(client.send_batch(&batch).unwrap(), batch.len());
        }
    };
    write(100);
    let writing = allocations(|| write(500));
    let (reading, server) = reading.join().unwrap();
    assert_eq!((writing, reading), (0, 0));
    client.close().unwrap();
    drop(server);
}

/// Checks the lowest allocation count of several tries. If a task on a busy machine does not poll
/// in time, the engine polls instead. When the task resumes polling, it notifies the engine. This
/// notification allocates, but is not part of the cost of a message.
#[test]
fn tasks_allocate_nothing() {
    const TRIES: usize = 3;
    let _test = DeviceTest::start();
    let runtime = || Builder::new_current_thread().enable_io().build().unwrap();
    for len in [0, 64, 16 * 1024] {
        let (client, server) = pair_with(&Config::default());
        let answering = thread::spawn(move || {
            runtime().block_on(async move {
                let server = tasks::Endpoint::new(server).unwrap();
                let echo = async |rounds| {
                    for _ in 0..rounds {
                        let message = server.recv().await.unwrap();
                        server.send(&message).await.unwrap();
                    }
                };
                echo(100).await;
                let mut least = u64::MAX;
                for _ in 0..TRIES {
                    let before = COUNT.get();
                    echo(ROUNDS).await;
                    least = least.min(COUNT.get() - before);
                }
                (least, server)
            })
        });
        let message = vec![7; len];
        let asking = runtime().block_on(async {
            let client = tasks::Endpoint::new(client).unwrap();
            let ask = async |rounds| {
                for _ in 0..rounds {
                    client.send(&message).await.unwrap();
                    assert_eq!(client.recv().await.unwrap().len(), len);
                }
            };
            ask(100).await;
            let mut least = u64::MAX;
            for _ in 0..TRIES {
                let before = COUNT.get();
                ask(ROUNDS).await;
                least = least.min(COUNT.get() - before);
            }
            least
        });
        let (answering, server) = answering.join().unwrap();
        assert_eq!((asking, answering), (0, 0), "{len} bytes");
        drop(server);
    }
}
