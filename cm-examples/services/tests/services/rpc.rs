//! Tests of the unmodified tarpc library over rdmsg messages.

use std::time::Instant;

use futures_util::StreamExt;
use nix::sys::signal::Signal;
use rdmsg::{Engine, tokio::Listener};
use services::rpc::{ClientTransport, ServerTransport, Store, StoreClient, Values, serve};
use tarpc::{
    client, context,
    context::Context,
    server::{BaseChannel, Channel},
};
use tokio::{sync::mpsc, task::JoinSet};

use super::stage::{Program, TIME_LIMIT, config, endpoint, ip_and_transport, run};

/// Returns the context of a call with the time limit `TIME_LIMIT`. tarpc's default of 10 s is too
/// short on a slow machine.
fn context() -> Context {
    let mut context = context::current();
    context.deadline = Instant::now() + TIME_LIMIT;
    context
}

const RPC: &str = env!("CARGO_BIN_EXE_rpc");

#[test]
fn calls_have_their_answers_until_the_client_ends() {
    run(async {
        let engine = Engine::shared().unwrap();
        let listener = rdmsg::Listener::builder()
            .config(&config())
            .engine(&engine)
            .bind((ip_and_transport().0, 0))
            .map(Listener::from)
            .unwrap();
        let connected = endpoint(listener.local_addr(), config()).await;
        let served = listener.accept().await.unwrap();
        let serving = tokio::spawn(serve(served, Values::default()));
        let transport = ClientTransport::new(connected);
        let client = StoreClient::new(client::Config::default(), transport).spawn();
        let none = client.get(context(), "key".into()).await.unwrap();
        assert_eq!(none, None);
        let mut calls = JoinSet::new();
        for number in 0..100 {
            let client = client.clone();
            calls.spawn(async move {
                let (key, value) = (number.to_string(), "x".repeat(number * 1000));
                let before = client.set(context(), key.clone(), value.clone());
                assert_eq!(before.await.unwrap(), None);
                let kept = client.get(context(), key).await.unwrap();
                assert!(kept == Some(value), "{number}");
            });
        }
        while let Some(call) = calls.join_next().await {
            call.unwrap();
        }
        drop(client);
        serving.await.unwrap();
    });
}

/// A store that never replies to a request for the key `wait`. Such a request runs until the client
/// cancels it.
#[derive(Clone)]
struct Waiting(mpsc::UnboundedSender<&'static str>);

/// A value that a running request owns. Dropping the value reports the cancellation of the request.
struct Ends(mpsc::UnboundedSender<&'static str>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.send("cancelled").unwrap();
    }
}

impl Store for Waiting {
    async fn set(self, _: Context, _: String, _: String) -> Option<String> {
        None
    }

    async fn get(self, _: Context, key: String) -> Option<String> {
        if key == "wait" {
            let _ends = Ends(self.0.clone());
            self.0.send("runs").unwrap();
            std::future::pending::<()>().await;
        }
        Some(key)
    }
}

#[test]
fn cancellation_reaches_server_with_full_window() {
    run(async {
        let config = config().with(|c| c.receive_window = Some(4));
        let engine = Engine::shared().unwrap();
        let listener = rdmsg::Listener::builder()
            .config(&config)
            .engine(&engine)
            .bind((ip_and_transport().0, 0))
            .map(Listener::from)
            .unwrap();
        let connected = endpoint(listener.local_addr(), config).await;
        let served = listener.accept().await.unwrap();
        let statistics = served.get_ref().clone();
        let (events, mut happened) = mpsc::unbounded_channel();
        // The server runs one request at a time.
        let transport = ServerTransport::new(served, 1);
        let serving = BaseChannel::with_defaults(transport).execute(Waiting(events).serve());
        let serving = tokio::spawn(serving.for_each(async |answer| drop(tokio::spawn(answer))));
        let window = connected.get_ref().clone();
        let transport = ClientTransport::new(connected);
        let client = StoreClient::new(client::Config::default(), transport).spawn();
        let call = |key: &str| {
            let (client, key) = (client.clone(), key.to_owned());
            tokio::spawn(async move { client.get(context(), key).await.unwrap() })
        };
        let first = call("wait");
        assert_eq!(happened.recv().await, Some("runs"));
        let others: Vec<_> = (0..20).map(|number| call(&number.to_string())).collect();
        // Wait until requests occupy all four receive buffers of the server. The client then has no
        // credit for further requests.
        while statistics.statistics().buffers_held < 4 {
            tokio::task::yield_now().await;
        }
        assert!(window.try_send(b"x").is_err_and(|error| error.is_full()));
        first.abort();
        assert_eq!(happened.recv().await, Some("cancelled"));
        for (number, other) in others.into_iter().enumerate() {
            assert_eq!(other.await.unwrap(), Some(number.to_string()));
        }
        drop((client, window, statistics));
        serving.await.unwrap();
    });
}

#[test]
fn programs_of_tarpc_keep_a_value() {
    let (mut server, address) = Program::serve(RPC, &["serve", "ADDR"]);
    let client = Program::start(RPC, &["set", "ADDR", "name", "value"], address);
    let ended = client.0.finish(TIME_LIMIT).unwrap();
    assert_eq!(ended.status, Some(0), "{}", ended.output);
    let words = ["get", "ADDR", "name", "-n", "200"];
    let mut client = Program::start(RPC, &words, address);
    client.line("value");
    client.line("200 requests, ");
    server.signal(Signal::SIGTERM);
    let ended = server.0.finish(TIME_LIMIT).unwrap();
    assert_eq!(ended.status, Some(0), "{}", ended.output);
}
