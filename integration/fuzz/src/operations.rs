//! Runs a connection with operations of the application, the peer, the connection manager, the
//! device and the clock. The input determines the order of the operations.

use std::{
    env,
    time::{Duration, Instant},
};

use crate::{
    device::Device,
    input::Input,
    proto::{
        CloseReason, CmInput, Connection, Params,
        testing::{BOTH_WAYS, params},
    },
    status::{CmStatus, RejectReason, WcStatus},
    wire::hello,
};

/// A function that performs an operation. The function reads its arguments from the input. `Params`
/// are the peer's parameters.
type Operation = fn(&mut Device, &mut Input<'_>, &Params);

/// All operations, with their names.
const OPERATIONS: [(&str, Operation); 27] = [
    // The connection manager performs the next call successfully.
    ("perform", |device, _, theirs| device.perform_well(theirs)),
    ("fail to perform", |device, input, _| {
        device.fail_to_perform(input.byte().into());
    }),
    ("event", event),
    ("accept", |device, _, _| device.conn.accept(b"", device.now)),
    ("reject", |device, _, _| {
        device.conn.reject(b"", device.now);
    }),
    ("frame", |device, input, _| {
        let frame = frame(device, input);
        device.frames(&[frame]);
    }),
    // All these frames arrive before the connection processes the first one.
    ("frames", |device, input, _| {
        let count = input.byte() % 8;
        let frames: Vec<_> = (0..count).map(|_| frame(device, input)).collect();
        device.frames(&frames);
    }),
    ("bytes", |device, input, _| {
        device.frames(&[input.bytes().to_vec()]);
    }),
    ("immediate", |device, input, _| {
        device.immediate(input.word(), input.word());
    }),
    ("complete", |device, _, _| device.complete()),
    ("fail", |device, input, _| {
        let status = WcStatus::from_raw(1 + u32::from(input.byte()) % 23);
        device.fail(input.flag(), status);
    }),
    ("flush", |device, input, _| device.flush(input.flag())),
    ("send", |device, input, _| device.send(input.byte().into())),
    ("send a large one", |device, input, _| {
        device.send((input.word() % (5 << 20)) as usize);
    }),
    ("operate", |device, input, _| device.operate(input.flag())),
    ("hold", |device, _, _| device.hold()),
    ("send held", |device, _, _| device.send_held()),
    ("ask", |device, _, _| device.ask()),
    ("finish", |device, _, _| device.finish()),
    ("send a control message", |device, input, _| {
        device.send_control_message(input.byte().into());
    }),
    ("ask to leave", |device, _, _| device.ask_to_leave()),
    ("take a control message", |device, _, _| {
        device.take_control_message();
    }),
    ("release", |device, _, _| device.release()),
    ("release a large one", |device, _, _| device.release_large()),
    ("pass", |device, input, _| {
        let millis = u16::from_be_bytes(input.take());
        device.pass(Duration::from_millis(millis.into()));
    }),
    ("close", |device, _, _| device.conn.close(device.now)),
    ("abort", |device, input, _| {
        device.conn.abort(input.word(), device.now);
    }),
];

/// Runs a connection until it has ended. Prints each operation if the environment variable
/// `FUZZ_SHOW` is set.
pub fn one_life(bytes: &[u8]) {
    let shows = env::var_os("FUZZ_SHOW").is_some();
    let mut input = Input(bytes);
    let now = Instant::now();
    let long = input.flag();
    // A long request has its private data in a separate frame. The answer to such a request needs
    // an eager size of 160 bytes.
    let eager_size = if long { 160 } else { 64 };
    let theirs = Params {
        eager_size,
        ..sizes(&mut input)
    };
    let ours = Params {
        eager_size,
        retry_refused: input.flag(),
        keepalive_interval: input.flag().then_some(Duration::from_secs(1)),
        ..sizes(&mut input)
    };
    let conn = if input.flag() {
        let data: &[u8] = if long { &[7; 21] } else { b"" };
        Connection::connect(ours.clone(), 7, data, now)
    } else {
        Connection::requested(ours.clone(), &hello(&theirs, long), BOTH_WAYS, now)
            .expect("the hello must be valid")
    };
    let mut device = Device::new(conn, ours, theirs.window, long, now);
    // Most operations have no effect before the connection is established. So half of the runs
    // start with an established connection.
    if input.flag() {
        device.establish(&theirs);
    }
    while !input.0.is_empty() {
        let operation = usize::from(input.byte()) % OPERATIONS.len();
        let (name, operation) = OPERATIONS[operation];
        if shows {
            eprintln!("{name}, {} bytes of input remain", input.0.len());
        }
        operation(&mut device, &mut input, &theirs);
        device.perform_outputs();
    }
    finish(&mut device);
}

fn sizes(input: &mut Input<'_>) -> Params {
    Params {
        window: 1 + u16::from(input.byte() % 6),
        send_slots: 1 + u32::from(input.byte() % 6),
        large_memory: 1 + u64::from(u16::from_be_bytes(input.take())) * 64,
        max_message: 4 << 20,
        ..params()
    }
}

/// Returns a valid or almost valid frame. Arbitrary frames would end the connection too early.
fn frame(device: &Device, input: &mut Input<'_>) -> Vec<u8> {
    const KINDS: [u8; 17] = [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 16, 17, 18, 18];
    let kind = KINDS[usize::from(input.byte()) % KINDS.len()];
    let payload = match kind {
        1 | 10 | 13 | 14 | 18 => vec![7; usize::from(input.byte() % 65)],
        16 => {
            let mut payload = input.take::<8>().to_vec();
            payload.extend(u64::from(input.word() % (5 << 20)).to_be_bytes());
            payload.extend(input.take::<4>());
            payload.extend([0; 4]);
            payload
        }
        17 => {
            let lens = input.bytes().iter().map(|len| len % 16);
            let message = |len: u8| [&[0, 0, 0, len][..], &[7; 15][..len.into()]].concat();
            lens.flat_map(message).collect()
        }
        _ => Vec::new(),
    };
    let (credit, received) = (device.credit, device.control_received);
    let most = credit.limit.max(credit.used + device.window());
    let mut bytes = vec![kind, 0, 0, 0];
    bytes.extend(count(input, credit.limit, most).to_be_bytes());
    let rest = device.missing().filter(|_| kind == 18);
    let more = if kind == 18 { input.byte() % 100 } else { 0 };
    let len = rest.unwrap_or(payload.len() as u32 + u32::from(more));
    bytes.extend(len.to_be_bytes());
    let argument = match kind {
        14 => u32::from(input.byte() % 3),
        10 => count(input, received.used, received.limit),
        11 => count(input, device.control.limit, device.control.used + 3),
        _ => count(input, device.exposed.1, device.exposed.0),
    };
    bytes.extend(argument.to_be_bytes());
    bytes.extend(payload);
    if input.flag() {
        let at = usize::from(input.byte()) % bytes.len();
        bytes[at] = input.byte();
    }
    bytes
}

/// Returns a value for a counter field: the unchanged value, the limit, one above the limit, or an
/// arbitrary number.
fn count(input: &mut Input<'_>, same: u32, most: u32) -> u32 {
    match input.byte() % 4 {
        0 => same,
        1 => most,
        2 => most + 1,
        _ => input.word(),
    }
}

/// Delivers an arbitrary event of the connection manager. In most states, the connection does not
/// expect this event.
fn event(device: &mut Device, input: &mut Input<'_>, _: &Params) {
    let kind = input.byte() % 15;
    let status = i32::from(input.byte() as i8);
    let error = CmStatus::from_raw(status);
    let reads = BOTH_WAYS;
    let event = match kind {
        0 => CmInput::AddrResolved,
        1 => CmInput::AddrError(error),
        2 => CmInput::RouteResolved,
        3 => CmInput::RouteError(error),
        4 => CmInput::ConnectResponse,
        5 => CmInput::ConnectError(error),
        6 => CmInput::Unreachable(error),
        7 => CmInput::Rejected {
            reason: RejectReason::from_raw(status),
            private_data: input.bytes(),
        },
        8 => CmInput::Established {
            private_data: input.bytes(),
            reads,
        },
        9 => CmInput::Disconnected,
        10 => CmInput::DeviceRemoval,
        11 => CmInput::AddrChange,
        12 => CmInput::TimewaitExit,
        13 => CmInput::Other(input.word()),
        _ => CmInput::Failed(&CloseReason::PeerDisconnected),
    };
    device.conn.handle_cm_event(event, device.now);
}

/// Closes the connection in its current state, and advances the simulated time until the connection
/// has ended.
fn finish(device: &mut Device) {
    device.conn.close(device.now);
    device.perform_outputs();
    // Several timers can expire before the close times out. For example, the keepalive timer
    // expires twice per interval.
    for _ in 0..100 {
        if device.ended.is_some() {
            break;
        }
        let deadline = device
            .conn
            .next_timeout()
            .expect("an open connection must have a deadline");
        device.pass(deadline.saturating_duration_since(device.now));
        device.perform_outputs();
    }
    assert!(device.ended.is_some(), "{device:?}");
    // Check that later events and calls have no effect.
    device
        .conn
        .handle_cm_event(CmInput::Disconnected, device.now);
    device.conn.abort(1, device.now);
    device.send(1);
    device.perform_outputs();
}
