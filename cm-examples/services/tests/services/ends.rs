//! Tests with peers that are killed with SIGKILL or stopped with SIGSTOP. Each service must report
//! the lost peer within [`bound`], which depends on the keepalive interval and on the keepalive
//! timeout.

use std::{
    fs,
    time::{Duration, Instant},
};

use http_body_util::{BodyExt, StreamBody};
use hyper::{Method, body::Frame};
use nix::sys::signal::Signal;
use rdmsg::Engine;
use services::{
    broker::ToBroker, copy, echo_service::EchoClient, options::ClientOptions, resp::Client, web,
    with_causes,
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use toolbox::{Deadline, slowness};

use super::{
    grpc,
    stage::{Folder, Program, Service, bound, connect, endpoint, keepalive, run, server},
};

/// The signals that kill or stop a program, each with the error text that its peer reports.
const ENDS: [(Signal, &str); 2] = [
    (Signal::SIGKILL, "the peer disconnected without closing"),
    (Signal::SIGSTOP, "the peer gives no sign of life"),
];

const RESP_SERVER: &str = env!("CARGO_BIN_EXE_resp_server");
const RESP_CLIENT: &str = env!("CARGO_BIN_EXE_resp_client");
const HTTP_SERVER: &str = env!("CARGO_BIN_EXE_http_server");
const HTTP_CLIENT: &str = env!("CARGO_BIN_EXE_http_client");
const GRPC: &str = env!("CARGO_BIN_EXE_grpc");
const BROKER: &str = env!("CARGO_BIN_EXE_broker");
const FILE_COPY: &str = env!("CARGO_BIN_EXE_file_copy");

/// Waits for a future to complete within [`bound`]. On a slow machine, the deadline is extended.
async fn within_bound<T>(ending: impl Future<Output = T>) -> T {
    let mut ending = std::pin::pin!(ending);
    let mut deadline = Deadline::after(bound());
    while !deadline.is_over() {
        if let Ok(ended) = timeout(deadline.left(), ending.as_mut()).await {
            return ended;
        }
    }
    panic!("the program must detect the lost peer within its time limit");
}

fn client_of(address: std::net::SocketAddr) -> ClientOptions {
    let mut options = ClientOptions::to(address);
    options.keepalive = keepalive();
    options
}

fn check(error: &(dyn std::error::Error + 'static), expected: &str) {
    let error = with_causes(error);
    assert!(error.contains(expected), "{error}");
}

#[test]
fn resp_client_detects_server_end() {
    for (signal, expected) in ENDS {
        run(async {
            let (mut server, address) = Program::serve(RESP_SERVER, &["ADDR"]);
            let mut client = Client::new(connect(&client_of(address)).await);
            client.ask(&["PING"]).await.unwrap();
            server.signal(signal);
            let error = within_bound(client.reply()).await.unwrap_err();
            check(&*error, expected);
        });
    }
}

#[test]
fn http_client_detects_server_end() {
    for (signal, expected) in ENDS {
        for http2 in [false, true] {
            run(async {
                let (mut server, address) = Program::serve(HTTP_SERVER, &["ADDR"]);
                let socket = connect(&client_of(address)).await;
                let mut client = web::Client::start(socket, http2).await.unwrap();
                let (posting, posted) = mpsc::channel(1);
                let posted = ReceiverStream::new(posted).map(|text| Ok(Frame::data(text)));
                let posted = StreamBody::new(posted).boxed();
                posting.send("hello".into()).await.unwrap();
                let answer = client.send(Method::POST, "/echo", posted).await.unwrap();
                let mut body = answer.into_body();
                let frame = body.frame().await.unwrap().unwrap();
                assert_eq!(frame.into_data().unwrap(), "hello");
                server.signal(signal);
                let error = within_bound(body.frame()).await.unwrap().unwrap_err();
                check(&error, expected);
            });
        }
    }
}

#[test]
fn grpc_client_detects_server_end() {
    for (signal, expected) in ENDS {
        run(async {
            let (mut server, address) = Program::serve(GRPC, &["serve", "ADDR"]);
            let engine = Engine::new().unwrap();
            let client = EchoClient::connect(client_of(address), engine).await;
            let (messages, stream) = mpsc::channel(1);
            messages.send("hello".into()).await.unwrap();
            let answers = client.unwrap().chat(ReceiverStream::new(stream)).await;
            let mut answers = answers.unwrap();
            assert_eq!(answers.next().await.unwrap().unwrap(), "hello");
            server.signal(signal);
            let status = within_bound(answers.next()).await.unwrap().unwrap_err();
            check(&status, expected);
        });
    }
}

#[test]
fn subscriber_detects_broker_end() {
    for (signal, expected) in ENDS {
        run(async {
            let (mut server, address) = Program::serve(BROKER, &["serve", "ADDR"]);
            let subscriber = endpoint(address, keepalive().config()).await;
            subscriber.send(&ToBroker::ask()).await.unwrap();
            drop(subscriber.recv().await.unwrap());
            server.signal(signal);
            let error = within_bound(subscriber.recv()).await.unwrap_err();
            check(&error, expected);
        });
    }
}

#[test]
fn copy_continues_with_next_server_after_an_end() {
    for (signal, expected) in ENDS {
        run(async {
            let folder = Folder::new("ends");
            let file = folder.path().join("here");
            fs::write(&file, vec![7; 30 << 20]).unwrap();
            let path = folder.path().to_str().unwrap();
            let (mut server, address) = Program::serve(FILE_COPY, &["serve", path, "ADDR"]);
            let copying = endpoint(address, keepalive().config()).await;
            let mut signalled = None;
            let mut signalling = |at, size| {
                if at > size / 2 && signalled.is_none() {
                    server.signal(signal);
                    signalled = Some(Instant::now());
                }
            };
            let error = copy::put(&copying, &file, "there", &mut signalling).await;
            check(&*error.unwrap_err(), expected);
            assert!(signalled.unwrap().elapsed() < bound().mul_f64(slowness()));
            drop(server);
            let (_server, address) = Program::serve(FILE_COPY, &["serve", path, "ADDR"]);
            let copying = endpoint(address, keepalive().config()).await;
            let copied = copy::put(&copying, &file, "there", &mut |_, _| {}).await;
            let copied = copied.unwrap();
            assert!(copied.from > 0, "{copied:?}");
            let there = fs::read(folder.path().join("there")).unwrap();
            assert!(there == fs::read(&file).unwrap());
        });
    }
}

/// Kills or stops a client during a request, and checks that the server reports the reason for the
/// end of the connection. `await_start` waits until the request has started.
fn server_learns(
    server: (&str, &[&str]),
    client: (&str, &[&str]),
    await_start: impl Fn(&mut Program),
) {
    for (signal, expected) in ENDS {
        let (mut server, address) = Program::serve_with(server.0, server.1, &keepalive());
        let mut client = Program::start(client.0, client.1, address);
        await_start(&mut client);
        client.signal(signal);
        assert!(server.0.wait_for_text(expected, bound()), "{signal}");
        // The server still runs after the end of the connection, and exits normally on SIGTERM.
        server.signal(Signal::SIGTERM);
        let ended = server.0.finish(super::stage::TIME_LIMIT).unwrap();
        assert_eq!(ended.status, Some(0), "{}", ended.output);
    }
}

#[test]
fn resp_server_detects_client_end() {
    let words = [
        "ADDR",
        "-n",
        "1000000000",
        "--clients",
        "1",
        "INCR",
        "count",
    ];
    server_learns((RESP_SERVER, &["ADDR"]), (RESP_CLIENT, &words), |client| {
        client.line("connected");
    });
}

#[test]
fn broker_detects_subscriber_end() {
    let words = ["sub", "ADDR", "news"];
    server_learns((BROKER, &["serve", "ADDR"]), (BROKER, &words), |client| {
        client.line("subscribed");
    });
}

/// Kills or stops a client, and waits until its connection has ended on the server. If no request
/// is in progress at that moment, the libraries of the server report no error. This function
/// therefore checks the number of open connections.
async fn connection_ends(service: Service, engine: Engine, program: &str, words: &[&str]) {
    for (signal, _) in ENDS {
        let mut client = Program::start(program, words, service.address());
        client.line("connected");
        assert_eq!(engine.statistics().unwrap().connections, 1);
        client.signal(signal);
        within_bound(async {
            while engine.statistics().unwrap().connections > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }
    service.stop().await;
}

#[test]
fn http_server_detects_client_end() {
    for version in ["--concurrency=1", "--http2"] {
        run(async {
            let server = server(keepalive()).await;
            let (addrs, engine) = (server.local_addrs().unwrap(), server.engine().clone());
            let serving = (server.stop(), async { server.serve(web::serve).await });
            let service = Service::of(&addrs, serving.0, serving.1);
            let words = ["ADDR", "-n", "1000000000", version];
            connection_ends(service, engine, HTTP_CLIENT, &words).await;
        });
    }
}

#[test]
fn grpc_server_detects_client_end() {
    run(async {
        let (service, engine) = grpc::service(keepalive()).await;
        let words = ["once", "ADDR", "hello", "-n", "1000000000"];
        connection_ends(service, engine, GRPC, &words).await;
    });
}
