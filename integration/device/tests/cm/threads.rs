//! Tests that threads can use ids while other threads read the events of the ids' channels.

use std::{
    collections::HashMap,
    sync::{
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, channel},
    },
    thread,
    time::Duration,
};

use rdmsg::{
    cm::{CmId, ConnParam, Devices, EventChannel, PortSpace},
    status::CmEventType,
    verbs::{CompletionQueue, ProtectionDomain},
};
use toolbox::DeviceTest;

use crate::common::{Queues, Server, TIME_LIMIT, assert_no_leak, attr, count_resources};

const WORKERS: u64 = 3;
const ROUNDS: u64 = 30;
const TICK: Duration = Duration::from_millis(5);

/// Returns the next event of the id whose context is `context`. Skips events of ids that the worker
/// has used earlier.
fn next(events: &Receiver<(u64, CmEventType)>, context: u64) -> CmEventType {
    loop {
        let (whose, event) = events.recv_timeout(TIME_LIMIT).unwrap();
        if whose == context {
            return event;
        }
        assert!(whose < context, "{event} of {whose:#x}");
    }
}

/// Creates one id per round, and drops the id in one of six states.
fn work(
    worker: u64,
    server: &Server,
    channel: &EventChannel,
    events: &Receiver<(u64, CmEventType)>,
) {
    for round in 0..ROUNDS {
        let context = worker << 32 | round;
        let mut id = CmId::new(channel, PortSpace::TCP, context).unwrap();
        id.resolve_addr(None, server.addr, TIME_LIMIT).unwrap();
        if round % 6 == 0 {
            continue;
        }
        assert_eq!(next(events, context), CmEventType::ADDR_RESOLVED);
        id.resolve_route(TIME_LIMIT).unwrap();
        if round % 6 == 1 {
            continue;
        }
        assert_eq!(next(events, context), CmEventType::ROUTE_RESOLVED);
        let queues = Queues::of(&mut id);
        id.connect(&ConnParam::default()).unwrap();
        if round % 6 == 2 {
            drop(id);
            continue;
        }
        assert_eq!(next(events, context), CmEventType::ESTABLISHED);
        assert_eq!(id.peer_addr(), Some(server.addr));
        match round % 6 {
            3 => drop(queues),
            4 => drop(id),
            _ => {
                id.disconnect().unwrap();
                assert_eq!(next(events, context), CmEventType::DISCONNECTED);
            }
        }
    }
}

/// Takes all requests and tries to accept them, until `done` is set. Returns the number of
/// requests.
fn serve(server: &Server, done: &AtomicBool) -> u64 {
    let context = Devices::get().unwrap().contexts().remove(0);
    let pd = ProtectionDomain::new(&context).unwrap();
    let cq = CompletionQueue::new(&context, 16, None).unwrap();
    let mut ids = HashMap::new();
    let mut accepted = 0;
    while !done.load(Relaxed) {
        let Some(mut event) = server.channel.wait_event(TICK).unwrap() else {
            continue;
        };
        match event.event() {
            CmEventType::CONNECT_REQUEST => {
                let mut id = event.take_request().unwrap();
                accepted += 1;
                id.set_context(accepted);
                // These calls fail if the client has already destroyed its id.
                if let Ok(qp) = id.create_qp(&pd, &attr(&cq))
                    && id.accept(&ConnParam::default()).is_ok()
                {
                    ids.insert(accepted, (id, qp));
                }
            }
            CmEventType::DISCONNECTED => {
                // Complete the peer's disconnect. Ignore the error: the call fails if the peer has
                // destroyed its id.
                if let Some((mut id, _qp)) = ids.remove(&event.context()) {
                    let _ = id.disconnect();
                }
            }
            _ => {}
        }
    }
    accepted
}

#[test]
fn ids_are_used_while_their_channel_is_read() {
    let lab = DeviceTest::without_credits();
    let before = count_resources(&lab);
    {
        let server = Server::new(lab.addr);
        let clients = EventChannel::new().unwrap();
        let done = AtomicBool::new(false);
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..WORKERS).map(|_| channel()).unzip();
        thread::scope(|scope| {
            let serving = scope.spawn(|| serve(&server, &done));
            let reading = scope.spawn(|| {
                while !done.load(Relaxed) {
                    let Some(event) = clients.wait_event(TICK).unwrap() else {
                        continue;
                    };
                    let worker = (event.context() >> 32) as usize;
                    // Ignore the error: a worker that has finished receives no more events.
                    let _ = senders[worker].send((event.context(), event.event()));
                }
            });
            let workers: Vec<_> = (0..)
                .zip(receivers)
                .map(|(worker, events)| {
                    let (server, clients) = (&server, &clients);
                    scope.spawn(move || work(worker, server, clients, &events))
                })
                .collect();
            let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
            done.store(true, Relaxed);
            let accepted = serving.join().unwrap();
            reading.join().unwrap();
            for result in results {
                result.unwrap();
            }
            // In three of six rounds, the worker waits until its connection is established. The
            // server has therefore taken at least one request per two rounds.
            assert!(accepted >= WORKERS * ROUNDS / 2, "{accepted}");
        });
    }
    assert_no_leak(&lab, &before);
}

/// Two threads migrate ids between two channels while other threads read both channels.
#[test]
fn ids_migrate_while_their_channels_are_read() {
    let lab = DeviceTest::without_credits();
    let server = Server::new(lab.addr);
    let channels = [(); 2].map(|()| EventChannel::new().unwrap());
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let (done, server, channels) = (&done, &server, &channels);
        let readers: Vec<_> = channels
            .iter()
            .map(|channel| {
                scope.spawn(move || {
                    let mut count = 0;
                    while !done.load(Relaxed) {
                        if let Some(event) = channel.wait_event(TICK).unwrap() {
                            // When librdmacm reads ADDR_RESOLVED, it queries the address. If the id
                            // is destroyed before the query, the event becomes ADDR_ERROR, and the
                            // status is the error of the query.
                            assert!(
                                matches!(
                                    (event.event(), event.status()),
                                    (CmEventType::ADDR_RESOLVED, 0)
                                        | (CmEventType::ADDR_ERROR, ..-1)
                                ),
                                "{:?}, status {}",
                                event.event(),
                                event.status()
                            );
                            count += 1;
                        }
                    }
                    count
                })
            })
            .collect();
        let movers: Vec<_> = (0..2)
            .map(|first| {
                scope.spawn(move || {
                    for _ in 0..20 {
                        let mut id = CmId::new(&channels[first], PortSpace::TCP, 7).unwrap();
                        id.resolve_addr(None, server.addr, TIME_LIMIT).unwrap();
                        for place in 1..20 {
                            id.migrate(&channels[(first + place) % 2]).unwrap();
                        }
                    }
                })
            })
            .collect();
        let results: Vec<_> = movers.into_iter().map(|mover| mover.join()).collect();
        done.store(true, Relaxed);
        let read: u64 = readers
            .into_iter()
            .map(|reader| reader.join().unwrap())
            .sum();
        for result in results {
            result.unwrap();
        }
        assert!(read <= 40, "{read} events for 40 calls of resolve_addr");
    });
}
