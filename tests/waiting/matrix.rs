//! Tests each call that has a deadline, while another user waits on the same connection.
//! [`OtherUser`] lists the kinds of other users. All combinations run concurrently.

use std::{
    any::Any,
    future::poll_fn,
    io::{self, ErrorKind, IoSlice, Read, Write},
    net::SocketAddr,
    os::fd::AsFd,
    sync::{Arc, Barrier, mpsc},
    thread,
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rdmsg::{
    Config, Connector, Endpoint, Engine, Error, Group, Interest, Listener, Outgoing, SendBuffer,
    Stream, TrySendError, tokio::Endpoint as TaskEndpoint,
};
use tokio::time::timeout;

use crate::{
    lateness::Lateness,
    stage::{TIME_LIMIT, receive_all, runtime},
};

/// The deadline of each call. It exceeds 5 s, because over TCP a thread waits in the receiving
/// system call only if its deadline is more than 5 s away.
const DEADLINE: Duration = Duration::from_millis(5500);

/// The maximum delay of a call after its deadline, on an idle machine.
const ALLOWED: Duration = Duration::from_millis(250);

/// Peers of this side's connections. All of them are in the same state, for example stopped.
pub(crate) trait Peers {
    /// Returns the name of the peers' state.
    fn name(&self) -> &str;

    /// Returns a message connection. Its peer grants 4 messages and receives nothing.
    fn endpoint(&self) -> Endpoint;

    /// Returns a byte stream. Its peer grants 4 messages and receives nothing.
    fn stream(&self) -> Stream;

    /// Returns the engine of this side's endpoints.
    fn engine(&self) -> &Engine;

    /// Returns an address at which a connect call receives no reply, or only a part of a reply.
    fn silent_address(&self) -> SocketAddr;

    /// Notifies the peers that all connections are established.
    fn begin(&mut self) {}
}

/// Returns the configuration of this side's endpoints.
pub(crate) fn config() -> Config {
    Config::default().with(|c| {
        c.receive_window = Some(4);
        c.send_depth = Some(4);
        c.close_timeout = DEADLINE;
        c.connect_timeout = TIME_LIMIT;
        c.keepalive_interval = None;
    })
}

/// A call on a message connection that waits until its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Recv,
    NextCompletion,
    Send,
    SendVectored,
    SendWithId,
    SendOwned,
    Flush,
    Close,
    PollRecv,
    TaskRecv,
    TaskNextCompletion,
    TaskSend,
    TaskSendBatch,
    TaskFlush,
    TaskClose,
    GroupRecv,
    GroupNextCompletion,
}

/// A call on a byte stream that waits until its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallOnBytes {
    Read,
    Peek,
    Write,
    TaskRead,
    TaskWrite,
}

/// Another user of the connection. It waits on the connection during the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OtherUser {
    /// No other user.
    Alone,
    /// A thread in `recv` or `read`.
    Thread,
    /// A thread in `next_completion`.
    NextCompletion,
    /// A group that contains the endpoint.
    Group,
    /// A task on a runtime that a thread drives.
    Task,
    /// A task on a runtime that no thread drives.
    IdleTask,
    /// A thread in poll(2).
    EventLoop,
}

const ON_MESSAGES: [Call; 17] = [
    Call::Recv,
    Call::NextCompletion,
    Call::Send,
    Call::SendVectored,
    Call::SendWithId,
    Call::SendOwned,
    Call::Flush,
    Call::Close,
    Call::PollRecv,
    Call::TaskRecv,
    Call::TaskNextCompletion,
    Call::TaskSend,
    Call::TaskSendBatch,
    Call::TaskFlush,
    Call::TaskClose,
    Call::GroupRecv,
    Call::GroupNextCompletion,
];

const ON_BYTES: [CallOnBytes; 5] = [
    CallOnBytes::Read,
    CallOnBytes::Peek,
    CallOnBytes::Write,
    CallOnBytes::TaskRead,
    CallOnBytes::TaskWrite,
];

const OTHER_USERS: [OtherUser; 7] = [
    OtherUser::Alone,
    OtherUser::Thread,
    OtherUser::NextCompletion,
    OtherUser::Group,
    OtherUser::Task,
    OtherUser::IdleTask,
    OtherUser::EventLoop,
];

impl Call {
    /// Returns true if the call works while the endpoint is in a group. The group then receives all
    /// messages and completions of the endpoint.
    fn works_in_group(self) -> bool {
        let receives = [
            Self::Recv,
            Self::NextCompletion,
            Self::PollRecv,
            Self::TaskRecv,
            Self::TaskNextCompletion,
        ];
        !receives.contains(&self)
    }

    /// Returns true if the call is made on the group itself.
    fn is_group_call(self) -> bool {
        [Self::GroupRecv, Self::GroupNextCompletion].contains(&self)
    }

    /// Returns true if the call waits in the same way as another call in `ON_MESSAGES`. Such a
    /// variant is tested only on a connection without other users.
    fn is_variant(self) -> bool {
        [Self::SendVectored, Self::SendWithId, Self::TaskSendBatch].contains(&self)
    }

    /// Returns true if the call is tested together with `other_user`.
    fn is_tested_with(self, other_user: OtherUser) -> bool {
        match other_user {
            OtherUser::Alone => !self.is_group_call(),
            OtherUser::Group => self.works_in_group() && !self.is_variant(),
            OtherUser::Thread
            | OtherUser::NextCompletion
            | OtherUser::Task
            | OtherUser::IdleTask
            | OtherUser::EventLoop => !self.is_group_call() && !self.is_variant(),
        }
    }

    fn needs_room(self) -> bool {
        let sends = [
            Self::Send,
            Self::SendVectored,
            Self::SendWithId,
            Self::SendOwned,
            Self::TaskSend,
            Self::TaskSendBatch,
        ];
        sends.contains(&self)
    }
}

/// A prepared call. It returns an error text if the call has an unexpected result.
type PreparedCall = Box<dyn FnOnce() -> Result<(), String> + Send>;

fn expect<T>(result: Result<T, Error>) -> Result<(), String> {
    match result {
        Err(Error::TimedOut) => Ok(()),
        Err(error) => Err(error.to_string()),
        Ok(_) => Err("it succeeded".into()),
    }
}

fn expect_io<T>(result: io::Result<T>) -> Result<(), String> {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error.to_string()),
        Ok(_) => Err("it succeeded".into()),
    }
}

fn expect_undelivered(result: Result<(), Error>) -> Result<(), String> {
    match result {
        Err(Error::Undelivered(_)) => Ok(()),
        Err(error) => Err(error.to_string()),
        Ok(()) => Err("it succeeded".into()),
    }
}

/// Runs the future as a task. Returns an error if the future completes before the deadline.
fn as_task<T>(run: impl Future<Output = T>) -> Result<(), String> {
    let timed = runtime(false).block_on(async { timeout(DEADLINE, run).await });
    timed
        .err()
        .map(drop)
        .ok_or_else(|| "the call returned".into())
}

fn as_endpoint<T>(
    endpoint: &Endpoint,
    run: impl AsyncFnOnce(TaskEndpoint) -> T,
) -> Result<(), String> {
    as_task(async { run(TaskEndpoint::new(endpoint.clone()).unwrap()).await })
}

fn on_messages(call: Call, endpoint: Endpoint, group: Option<Group>) -> PreparedCall {
    Box::new(move || match call {
        Call::Recv => expect(endpoint.recv_timeout(DEADLINE)),
        Call::NextCompletion => expect(endpoint.next_completion_timeout(DEADLINE)),
        Call::Send => expect(endpoint.send_timeout(b"more", DEADLINE)),
        Call::SendVectored => {
            let parts = [IoSlice::new(b"mo"), IoSlice::new(b"re")];
            expect(endpoint.send_timeout(Outgoing::parts(&parts), DEADLINE))
        }
        Call::SendWithId => {
            expect(endpoint.send_timeout(Outgoing::from(b"more").with_id(7), DEADLINE))
        }
        Call::SendOwned => {
            let buffer = SendBuffer::new(&endpoint, 4).unwrap();
            let sent = endpoint.send_timeout(buffer, DEADLINE);
            expect(sent)
        }
        Call::Flush => expect(endpoint.flush_timeout(DEADLINE)),
        Call::Close => expect_undelivered(endpoint.close()),
        Call::PollRecv => as_task(poll_fn(|cx| endpoint.poll_recv(cx))),
        Call::TaskRecv => as_endpoint(&endpoint, async |endpoint| endpoint.recv().await),
        Call::TaskNextCompletion => {
            as_endpoint(&endpoint, async |endpoint| endpoint.next_completion().await)
        }
        Call::TaskSend => as_endpoint(&endpoint, async |endpoint| endpoint.send(b"more").await),
        Call::TaskSendBatch => as_endpoint(&endpoint, async |endpoint| {
            endpoint.send_batch(&[IoSlice::new(b"more")]).await
        }),
        Call::TaskFlush => as_endpoint(&endpoint, async |endpoint| endpoint.flush().await),
        Call::TaskClose => {
            let closed = runtime(false).block_on(async {
                let endpoint = TaskEndpoint::new(endpoint.clone()).unwrap();
                // The endpoint's `close_timeout` is `DEADLINE`, so it expires before this timeout.
                timeout(2 * DEADLINE, endpoint.close()).await
            });
            closed.map_or_else(
                |_| Err("the call did not return".into()),
                expect_undelivered,
            )
        }
        Call::GroupRecv => {
            let group = group.unwrap();
            let received = group.completions().recv_timeout(DEADLINE);
            received.err().map(drop).ok_or_else(|| "it received".into())
        }
        Call::GroupNextCompletion => expect(group.unwrap().next_completion_timeout(DEADLINE)),
    })
}

fn on_bytes(call: CallOnBytes, mut stream: Stream) -> PreparedCall {
    Box::new(move || {
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        match call {
            CallOnBytes::Read => expect_io(stream.read(&mut [0])),
            CallOnBytes::Peek => expect_io(stream.peek(&mut [0])),
            CallOnBytes::Write => expect_io(stream.write(b"more")),
            CallOnBytes::TaskRead => as_task(poll_fn(|cx| stream.poll_read(cx, &mut [0]))),
            CallOnBytes::TaskWrite => as_task(poll_fn(|cx| stream.poll_write(cx, b"more"))),
        }
    })
}

/// Sends messages until the window is full.
fn fill(endpoint: &Endpoint) {
    loop {
        match endpoint.try_send(b"fills the window") {
            Ok(()) => {}
            Err(TrySendError::Full) => break,
            Err(TrySendError::Failed(error)) => panic!("{error}"),
        }
    }
}

/// Writes until a write blocks for 2 s. A shorter wait does not show that the stream is full,
/// because the peer's engine may still be receiving bytes.
fn fill_bytes(stream: &mut Stream) {
    let full = Some(Duration::from_secs(2));
    stream.set_write_timeout(full).unwrap();
    loop {
        match stream.write(&[7; 1000]) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
}

/// The other users of the connections: threads and tasks that wait until these connections end.
struct Others {
    ended: mpsc::Sender<()>,
    idle: Vec<mpsc::Sender<()>>,
    held: Vec<Box<dyn Any>>,
}

impl Others {
    fn spawn(&self, wait: impl FnOnce() + Send + 'static) {
        let ended = self.ended.clone();
        thread::spawn(move || {
            // Dropping `_ended` reports that the thread has ended, even after a panic.
            let _ended = ended;
            wait();
        });
    }

    fn start_on_endpoint(&mut self, other_user: OtherUser, endpoint: &Endpoint) -> Option<Group> {
        let endpoint = endpoint.clone();
        match other_user {
            OtherUser::Alone => {}
            OtherUser::Thread => self.spawn(move || while endpoint.recv().is_ok() {}),
            OtherUser::NextCompletion => {
                self.spawn(move || while endpoint.next_completion().is_ok() {})
            }
            OtherUser::Group => {
                let group = Group::new();
                group.add(&endpoint).unwrap();
                self.held.push(Box::new(endpoint));
                let taking = group.clone();
                self.held.push(Box::new(group));
                return Some(taking);
            }
            OtherUser::Task => self.spawn(move || {
                runtime(false).block_on(async { receive_all(endpoint).await.await.unwrap() });
            }),
            OtherUser::IdleTask => {
                let (go, wait) = mpsc::channel();
                let (waits, is_waiting) = mpsc::channel();
                self.idle.push(go);
                self.spawn(move || {
                    let runtime = runtime(false);
                    let task = runtime.block_on(receive_all(endpoint));
                    waits.send(()).unwrap();
                    let _ = wait.recv();
                    runtime.block_on(task).unwrap();
                });
                is_waiting.recv().unwrap();
            }
            OtherUser::EventLoop => {
                endpoint.event_fd(Interest::Readable).unwrap();
                self.spawn(move || {
                    let fd = endpoint.event_fd(Interest::Readable).unwrap();
                    loop {
                        let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
                        poll(&mut fds, PollTimeout::NONE).unwrap();
                        if endpoint.try_recv().is_err() {
                            break;
                        }
                    }
                });
            }
        }
        None
    }

    fn start_on_stream(&self, other_user: OtherUser, stream: &Stream) {
        let mut stream = stream.try_clone().unwrap();
        match other_user {
            OtherUser::Thread => self.spawn(move || {
                // All handles of the stream share its read timeout. Read again after this timeout.
                let again = |error: io::Error| error.kind() == ErrorKind::WouldBlock;
                while stream.read(&mut [0]).map_or_else(again, |count| count > 0) {}
            }),
            OtherUser::Task => self.spawn(move || {
                let reading = poll_fn(|cx| stream.poll_read(cx, &mut [0]));
                let _ = smol::block_on(reading);
            }),
            OtherUser::Alone
            | OtherUser::NextCompletion
            | OtherUser::Group
            | OtherUser::IdleTask
            | OtherUser::EventLoop => {}
        }
    }
}

/// A completed call: its name, its result, and its duration.
type Report = (String, Result<(), String>, Duration);

/// Returns the additional time that a call may take after its deadline. Only a close may take
/// additional time, because it waits for the device to complete the work requests.
fn extra_time(name: &str) -> Duration {
    if name.contains("Close") {
        Duration::from_secs(2)
    } else {
        Duration::ZERO
    }
}

/// Makes each call in each state. All calls run concurrently. Panics if a call returns too early,
/// too late, or with an unexpected result.
pub(crate) fn assert_in_time(mut states: Vec<Box<dyn Peers>>) {
    let (ended, all_ended) = mpsc::channel();
    let mut others = Others {
        ended,
        idle: Vec::new(),
        held: Vec::new(),
    };
    let mut calls: Vec<(String, PreparedCall)> = Vec::new();
    for state in &states {
        prepare(&**state, &mut others, &mut calls);
    }
    for state in &mut states {
        state.begin();
    }
    let expected = calls.len();
    let start = Arc::new(Barrier::new(expected + 1));
    let (report, reports) = mpsc::channel::<Report>();
    let mut pending: Vec<String> = Vec::new();
    for (name, call) in calls {
        pending.push(name.clone());
        let (report, start) = (report.clone(), Arc::clone(&start));
        let make = move || {
            start.wait();
            let started = Instant::now();
            let result = call();
            let _ = report.send((name, result, started.elapsed()));
        };
        thread::Builder::new().spawn(make).unwrap();
    }
    drop(report);
    start.wait();
    let lateness = Lateness::of(DEADLINE);
    let started = Instant::now();
    let mut all = Vec::new();
    // The test waits until this time for the remaining calls.
    let end = started + DEADLINE + TIME_LIMIT;
    while let Ok(report) = reports.recv_timeout(end.saturating_duration_since(Instant::now())) {
        pending.retain(|name| *name != report.0);
        all.push(report);
    }
    let allowed = lateness.permitted(ALLOWED);
    let mut wrong: Vec<String> = Vec::new();
    for (name, result, time) in &all {
        if let Err(problem) = result {
            wrong.push(format!("{name}: after {time:.1?}: {problem}"));
        } else if *time < DEADLINE {
            wrong.push(format!("{name}: too early, after {time:.1?}"));
        } else if *time > DEADLINE + extra_time(name) + allowed {
            wrong.push(format!("{name}: late, after {time:.1?}"));
        }
    }
    wrong.extend(
        pending
            .iter()
            .map(|name| format!("{name}: has not returned")),
    );
    wrong.sort();
    let count = wrong.len();
    let wrong = wrong.join("\n");
    assert!(
        count == 0,
        "{count} of {expected} calls had a wrong result, or did not return within {allowed:.1?} \
         after their deadline of {DEADLINE:?}:\n{wrong}"
    );
    // End the connections, which wakes all other users.
    drop(states);
    let Others { ended, idle, held } = others;
    drop((ended, idle, held));
    let woken = all_ended.recv_timeout(TIME_LIMIT).unwrap_err();
    assert_eq!(
        woken,
        mpsc::RecvTimeoutError::Disconnected,
        "the end of the connections must wake all other users"
    );
}

/// Establishes a connection for each call, starts the other users of the connection, and prepares
/// the call.
fn prepare(state: &dyn Peers, others: &mut Others, calls: &mut Vec<(String, PreparedCall)>) {
    let name = |call: &dyn std::fmt::Debug, other_user| {
        format!("{}, {call:?}, other user: {other_user:?}", state.name())
    };
    for other_user in OTHER_USERS {
        for call in ON_MESSAGES
            .into_iter()
            .filter(|call| call.is_tested_with(other_user))
        {
            let endpoint = state.endpoint();
            if call.needs_room() {
                fill(&endpoint);
            }
            let group = others.start_on_endpoint(other_user, &endpoint);
            calls.push((name(&call, other_user), on_messages(call, endpoint, group)));
        }
    }
    let writes = |call| matches!(call, CallOnBytes::Write | CallOnBytes::TaskWrite);
    let mut streams = Vec::new();
    for other_user in [OtherUser::Alone, OtherUser::Thread, OtherUser::Task] {
        // Only one user can read a stream at a time, either a task or a thread.
        let is_possible = |call: &CallOnBytes| other_user != OtherUser::Task || writes(*call);
        let possible = ON_BYTES.into_iter().filter(is_possible);
        streams.extend(possible.map(|call| (call, other_user, state.stream())));
    }
    thread::scope(|scope| {
        for (_, _, stream) in streams.iter_mut().filter(|(call, _, _)| writes(*call)) {
            scope.spawn(|| fill_bytes(stream));
        }
    });
    for (call, other_user, stream) in streams {
        others.start_on_stream(other_user, &stream);
        calls.push((name(&call, other_user), on_bytes(call, stream)));
    }
    let impatient = config().with(|c| c.connect_timeout = DEADLINE);
    let connector = Connector::new().config(&impatient).engine(state.engine());
    let connecting = connector.clone();
    let addr = state.silent_address();
    let connect: PreparedCall = Box::new(move || match connector.connect(addr) {
        Err(Error::Connect { .. }) => Ok(()),
        Err(error) => Err(error.to_string()),
        Ok(_) => Err("it succeeded".into()),
    });
    calls.push((name(&"Connect", OtherUser::Alone), connect));
    let connect: PreparedCall = Box::new(move || {
        // The `connect_timeout` is `DEADLINE`, so it expires before the timeout below.
        let connecting = connecting.start(addr).unwrap();
        match runtime(false).block_on(async { timeout(2 * DEADLINE, connecting).await }) {
            Ok(Err(Error::Connect { .. })) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Ok(Ok(_)) => Err("it succeeded".into()),
            Err(_) => Err("the call did not return".into()),
        }
    });
    calls.push((name(&"TaskConnect", OtherUser::Alone), connect));
    let address = SocketAddr::new(addr.ip(), 0);
    let listener = Listener::builder()
        .config(&config())
        .engine(state.engine())
        .bind(address)
        .unwrap();
    let accept: PreparedCall = Box::new(move || expect(listener.accept_timeout(DEADLINE)));
    calls.push((name(&"Accept", OtherUser::Alone), accept));
}
