use std::time::Duration;

use rdmsg::{
    CloseReason, Completion, Config, Connector, Endpoint, Error, Listener, Message,
    PersistentEvent, testing::Faults,
};
use tokio::time::{Instant, timeout};

fn faults(endpoint: &Endpoint) -> Faults {
    Faults::of(endpoint).unwrap()
}

fn ended(endpoint: &Endpoint) -> CloseReason {
    match endpoint.try_recv() {
        Err(Error::Disconnected(reason)) => reason,
        other => panic!("the connection continues: {other:?}"),
    }
}

#[test]
fn cut_ends_both_sides_after_received_messages() {
    let (near, far) = Endpoint::pair().unwrap();
    near.send(b"before").unwrap();
    let held = faults(&near).hold();
    near.send(b"on the way").unwrap();
    faults(&far).cut();
    assert_eq!(far.recv().unwrap(), b"before");
    assert_eq!(ended(&far), CloseReason::PeerDisconnected);
    assert_eq!(ended(&near), CloseReason::PeerDisconnected);
    assert_eq!(held.count(), 0);
    assert!(
        near.close().is_err(),
        "a close must fail if a message is lost"
    );
    faults(&near).cut();
}

#[test]
fn abort_carries_its_code() {
    let (near, far) = Endpoint::pair().unwrap();
    faults(&near).abort(7);
    assert_eq!(ended(&far), CloseReason::PeerAborted(7));
    assert_eq!(ended(&near), CloseReason::LocallyAborted);
}

#[test]
fn persistent_client_dials_again_after_a_cut() {
    let listener = Listener::bind("memory://persistent").unwrap();
    let client = Connector::new().persist("memory://persistent").unwrap();
    for round in 0..3_u8 {
        let event = client.next_event().unwrap();
        assert!(
            matches!(event, PersistentEvent::Connected { .. }),
            "{event:?}"
        );
        let server = listener.accept().unwrap();
        client.send(&[round]).unwrap();
        assert_eq!(server.recv().unwrap(), [round]);
        faults(&server).cut();
        let event = client.next_event().unwrap();
        assert!(matches!(event, PersistentEvent::Lost { .. }), "{event:?}");
    }
}

#[test]
fn session_resumes_in_the_call_that_cuts_it() {
    let config = Config::default().with(|config| config.resume = Duration::from_secs(60));
    let listener = Listener::builder().config(&config);
    let listener = listener.bind("memory://session").unwrap();
    let connector = Connector::new().config(&config);
    let near = connector.connect("memory://session").unwrap();
    let far = listener.accept().unwrap();
    for round in 1..4_u8 {
        let held = faults(&near).hold();
        near.send(&[round]).unwrap();
        assert!(far.try_recv().unwrap().is_none());
        faults(&near).cut();
        drop(held);
        let next = || far.try_next_completion().unwrap().unwrap();
        assert!(matches!(next(), Completion::Suspended { .. }));
        assert!(matches!(next(), Completion::Resumed { .. }));
        assert!(matches!(next(), Completion::Received(message) if message == [round]));
        assert_eq!(near.statistics().resumes, u64::from(round));
    }
    near.close().unwrap();
}

fn resuming() -> Config {
    Config::default().with(|config| config.resume = Duration::from_secs(60))
}

#[test]
fn pair_resumes_in_the_call_that_cuts_it() {
    let (near, far) = Connector::new().config(&resuming()).pair().unwrap();
    for round in 1..4_u8 {
        faults(&near).cut();
        assert_eq!(near.statistics().resumes, u64::from(round));
        near.send(&[round]).unwrap();
        assert_eq!(far.recv().unwrap(), [round]);
        far.send(&[round]).unwrap();
        assert_eq!(near.recv().unwrap(), [round]);
    }
    near.close().unwrap();
}

#[tokio::test(start_paused = true)]
async fn pair_of_tasks_resumes_under_a_paused_clock() {
    let (near, far) = Connector::new().config(&resuming()).pair().unwrap();
    let [near, far] = [near, far].map(|side| rdmsg::tokio::Endpoint::new(side).unwrap());
    faults(near.get_ref()).cut();
    near.send(b"after the cut").await.unwrap();
    assert_eq!(far.recv().await.unwrap(), b"after the cut");
    near.close().await.unwrap();
}

#[test]
fn drain_ends_sessions_that_cannot_resume() {
    let engine = rdmsg::Engine::in_memory().unwrap();
    let builder = Listener::builder().config(&resuming()).engine(&engine);
    let listener = builder.bind("memory://drained").unwrap();
    let brief = resuming().with(|config| config.close_timeout = Duration::from_millis(100));
    let connector = Connector::new().config(&brief);
    let near = connector.connect("memory://drained").unwrap();
    let far = listener.accept().unwrap();
    listener.close();
    faults(&far).cut();
    assert!(far.info().is_suspended);
    drop(near);
    assert_eq!(engine.drain(Duration::from_secs(30)).unwrap(), 0);
    assert!(far.info().close_reason.is_some());
    engine.shutdown();
}

#[test]
fn close_gives_up_held_messages_in_time() {
    let config = Config::default().with(|config| {
        config.close_timeout = Duration::from_millis(20);
    });
    let (near, far) = Connector::new().config(&config).pair().unwrap();
    let held = faults(&near).hold();
    near.send(b"never").unwrap();
    let error = near.close().unwrap_err();
    assert!(matches!(error, Error::Undelivered(_)), "{error}");
    drop(held);
    assert!(far.recv().is_err());
}

#[test]
fn withheld_credit_fills_the_window() {
    let config = Config::default().with(|config| config.receive_window = Some(3));
    let (near, far) = Connector::new().config(&config).pair().unwrap();
    for _ in 0..3 {
        let withheld = faults(&far).withhold_credit();
        for _ in 0..3 {
            near.try_send(b"taken").unwrap();
            assert_eq!(far.recv().unwrap(), b"taken");
        }
        assert!(near.try_send(b"no room").unwrap_err().is_full());
        drop(withheld);
        near.try_send(b"room").unwrap();
        assert_eq!(far.recv().unwrap(), b"room");
    }
    near.close().unwrap();
}

#[tokio::test(start_paused = true)]
async fn held_frames_let_a_timeout_fire() {
    let (client, server) = rdmsg::tokio::Endpoint::pair().unwrap();
    let (start, second) = (Instant::now(), Duration::from_secs(1));
    let held = faults(client.get_ref()).hold();
    client.send(b"late").await.unwrap();
    assert!(timeout(second, server.recv()).await.is_err());
    let release = tokio::spawn(async move {
        tokio::time::sleep(second).await;
        drop(held);
    });
    let late = timeout(2 * second, server.recv()).await.unwrap();
    assert_eq!(late.unwrap(), b"late");
    release.await.unwrap();
    assert_eq!(start.elapsed(), 2 * second);
}

#[test]
fn tcp_connection_has_no_fault_injector() {
    let config = common::tcp_config();
    let listener = Listener::builder().config(&config);
    let listener = listener.bind("127.0.0.1:0").unwrap();
    let connector = Connector::new().config(&config);
    let endpoint = connector.connect(listener.local_addr()).unwrap();
    assert!(Faults::of(&endpoint).is_none());
}

#[test]
fn message_from_bytes_acts_like_a_received_one() {
    let message = Message::from(vec![1, 2, 3]);
    assert_eq!(message, [1, 2, 3]);
    assert_eq!(Message::from(b"text"), b"text");
    assert_eq!(Message::from(&message[1..]).into_vec(), [2, 3]);
    assert_eq!(message.into_vec(), [1, 2, 3]);
}
