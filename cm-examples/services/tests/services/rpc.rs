//! Unmodified tarpc, over messages.

use std::time::Instant;

use nix::sys::signal::Signal;
use rdmsg::{Engine, tokio::Listener};
use services::rpc::{StoreClient, Transport, Values, serve};
use tarpc::{client, context, context::Context};
use tokio::task::JoinSet;

use super::stage::{Program, TIME_LIMIT, config, endpoint, place, run};

/// Returns the context of a call. The default one has a time limit of 10 s for the answer.
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
            .bind((place().0, 0))
            .map(Listener::from)
            .unwrap();
        let connected = endpoint(listener.local_addr(), config()).await;
        let served = listener.accept().await.unwrap();
        let serving = tokio::spawn(serve(served, Values::default()));
        let transport = Transport::new(connected);
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
