//! Tests of concurrent reads through several handles of one stream.

use std::{
    io::{ErrorKind, Read, Write},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
        mpsc::{Sender, channel},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use rdmsg::Stream;

use super::stage::{self, TIME_LIMIT};

fn pair() -> (Stream, Stream) {
    let (near, far) = stage::pair();
    (near.into(), far.into())
}

/// Starts a thread that reads one byte from a clone of the stream. Returns when the thread is about
/// to read.
fn reader(stream: &Stream) -> thread::JoinHandle<u8> {
    let (mut stream, (begins, began)) = (stream.try_clone().unwrap(), channel());
    let reading = thread::spawn(move || {
        begins.send(()).unwrap();
        let mut byte = [0];
        loop {
            match stream.read(&mut byte) {
                Ok(count) => {
                    assert_eq!(count, 1, "the stream must not end");
                    return byte[0];
                }
                // If the test sets a timeout before this thread reads, the read can time out. The
                // loop then repeats the read.
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        }
    });
    began.recv().unwrap();
    reading
}

#[test]
fn read_timeout_holds_while_a_clone_waits() {
    let (mut near, far) = pair();
    let reading = reader(&far);
    // Give the thread time to block in its read, which has no timeout.
    thread::sleep(Duration::from_millis(100));
    let timeout = Duration::from_millis(20);
    far.set_read_timeout(Some(timeout)).unwrap();
    let clone = far.try_clone().unwrap();
    let (ends, end) = channel();
    thread::spawn(move || {
        let start = Instant::now();
        let read = (&clone).read(&mut [0]);
        ends.send((read, start.elapsed())).unwrap();
    });
    let (read, took) = end.recv_timeout(TIME_LIMIT).expect("the read must return");
    assert_eq!(read.unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(took >= timeout && took < TIME_LIMIT, "{took:?}");
    near.write_all(b"x").unwrap();
    assert_eq!(reading.join().unwrap(), b'x');
}

#[test]
fn readers_take_turns() {
    let (mut near, far) = pair();
    let readers: Vec<_> = (0..8).map(|_| reader(&far)).collect();
    near.write_all(b"abcdefgh").unwrap();
    let mut bytes: Vec<u8> = readers.into_iter().map(|it| it.join().unwrap()).collect();
    bytes.sort_unstable();
    assert_eq!(bytes, b"abcdefgh");
}

/// A waker that counts its calls, and reports each call through a channel.
struct CountingWaker {
    wakes: AtomicU32,
    wake_sender: Mutex<Sender<()>>,
}

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
        // Ignore the error: the receiver no longer exists after the test has ended.
        let _ = self.wake_sender.lock().unwrap().send(());
    }
}

#[test]
fn task_reading_next_to_a_thread_is_woken_once() {
    let (mut near, far) = pair();
    let (wake_sender, wake_receiver) = channel();
    let counting_waker = Arc::new(CountingWaker {
        wakes: AtomicU32::new(0),
        wake_sender: Mutex::new(wake_sender),
    });
    let waker = Waker::from(Arc::clone(&counting_waker));
    let cx = &mut Context::from_waker(&waker);
    let reading = reader(&far);
    // Give the thread time to block in its read.
    thread::sleep(Duration::from_millis(100));
    assert!(far.poll_read(cx, &mut [0]).is_pending());
    assert_eq!(
        counting_waker.wakes.load(Ordering::SeqCst),
        0,
        "the task must not be woken without an event"
    );
    near.write_all(b"x").unwrap();
    assert_eq!(reading.join().unwrap(), b'x');
    wake_receiver
        .recv_timeout(TIME_LIMIT)
        .expect("the task must be woken when the thread's read returns");
    near.write_all(b"y").unwrap();
    let mut byte = [0];
    let count = loop {
        match far.poll_read(cx, &mut byte) {
            Poll::Ready(read) => break read.unwrap(),
            Poll::Pending => wake_receiver
                .recv_timeout(TIME_LIMIT)
                .expect("the task must be woken for the byte"),
        }
    };
    assert_eq!((count, byte), (1, *b"y"));
    assert!(
        counting_waker.wakes.load(Ordering::SeqCst) < 10,
        "the task must not be woken repeatedly"
    );
}
