//! Checks the auto traits of the types and of their futures, and the size of a task. Also checks
//! that `from_std` converts a stream or a listener only if no other handle of it exists.

use std::panic::{RefUnwindSafe, UnwindSafe};

fn assert_auto_traits<T: Send + Sync + Unpin + UnwindSafe + RefUnwindSafe>() {}

macro_rules! assert_auto_traits {
    ($($theirs:ty, $ours:ty;)*) => { $(
        assert_auto_traits::<$theirs>();
        assert_auto_traits::<$ours>();
    )* };
}

#[test]
fn types_are_send_sync_and_unwind_safe() {
    assert_auto_traits! {
        std::net::TcpStream, rdmsg::Stream;
        std::net::TcpListener, rdmsg::StreamListener;
        tokio::net::TcpStream, rdmsg::tokio::Stream;
        tokio::net::TcpListener, rdmsg::tokio::StreamListener;
        tokio::net::tcp::OwnedReadHalf, rdmsg::tokio::OwnedReadHalf;
        tokio::net::tcp::OwnedWriteHalf, rdmsg::tokio::OwnedWriteHalf;
        tokio::net::tcp::ReuniteError, rdmsg::tokio::ReuniteError;
    }
    // The borrowed halves of both libraries are not unwind-safe, because each contains a mutable
    // borrow.
    fn halves<T: Send + Sync + Unpin>() {}
    halves::<tokio::net::tcp::ReadHalf<'_>>();
    halves::<rdmsg::tokio::ReadHalf<'_>>();
    halves::<tokio::net::tcp::WriteHalf<'_>>();
    halves::<rdmsg::tokio::WriteHalf<'_>>();
}

#[test]
fn futures_are_send() {
    fn is_send(_: impl Send) {}

    fn of_a_stream(stream: &rdmsg::tokio::Stream) {
        is_send(stream.peek(&mut [0; 1]));
        is_send(stream.readable());
        is_send(stream.writable());
        is_send(stream.ready(tokio::io::Interest::READABLE));
    }

    let _: fn(&rdmsg::tokio::Stream) = of_a_stream;
}

#[test]
fn a_connecting_task_is_small() {
    let task = async {
        let stream = rdmsg::tokio::Stream::connect("127.0.0.1:1").await.unwrap();
        loop {
            stream.readable().await.unwrap();
            let mut buffer = [0; 4096];
            if stream.try_read(&mut buffer).unwrap() == 0 {
                break;
            }
        }
    };
    let size = size_of_val(&task);
    assert!(size < 800, "{size} bytes");
}

#[test]
fn from_std_refuses_while_another_handle_exists() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let listener = rdmsg::StreamListener::bind(super::free_rdmsg_address()).unwrap();
        let addr = listener.local_addr().unwrap();
        let connect = move || rdmsg::Stream::connect_timeout(addr, common::TIME_LIMIT).unwrap();
        let client = std::thread::spawn(connect);
        let (server, _) = listener.accept().unwrap();
        let _client = client.join().unwrap();
        let handle = server.try_clone().unwrap();
        let error = rdmsg::tokio::Stream::from_std(server).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy);
        rdmsg::tokio::Stream::from_std(handle).unwrap();
        let handle = listener.try_clone().unwrap();
        let error = rdmsg::tokio::StreamListener::from_std(listener).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy);
        rdmsg::tokio::StreamListener::from_std(handle).unwrap();
    });
}
