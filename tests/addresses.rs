//! Tests of addresses with a transport scheme or a network interface, of connections to the
//! unspecified addresses `0.0.0.0` and `[::]`, and of the variable `RDMSG_TRANSPORT`.

use std::{
    net::{IpAddr, SocketAddr, SocketAddrV6},
    process::Command,
    thread,
};

use common::connector;
use rdmsg::{Endpoint, Listener, ToAddresses, Transport};

/// Starts a server that echoes one message on each connection. Returns the server's address.
fn echo(address: &str) -> SocketAddr {
    let listener = Listener::bind(address).unwrap();
    let addr = listener.local_addr();
    thread::spawn(move || {
        for endpoint in listener.incoming() {
            let endpoint = endpoint.unwrap();
            thread::spawn(move || {
                let message = endpoint.recv().unwrap();
                endpoint.send(&message).unwrap();
            });
        }
    });
    addr
}

fn exchange(endpoint: &Endpoint) {
    endpoint.send(b"hello").unwrap();
    assert_eq!(*endpoint.recv().unwrap(), *b"hello");
}

#[test]
fn schemes_may_have_any_case() {
    let addr = echo("TCP://127.0.0.1:0");
    for scheme in ["tcp", "TCP", "Tcp", "AUTO", "Auto"] {
        let address = format!("{scheme}://{addr}");
        let endpoint = connector().connect(address).unwrap();
        assert_eq!(endpoint.info().transport, Transport::Tcp);
        exchange(&endpoint);
    }
}

/// Runs `variable_for_the_transport_is_read` in a process in which `RDMSG_TRANSPORT` is `value`.
/// Returns the output of the process.
fn bind_with_variable(value: &str) -> String {
    let test = "variable_for_the_transport_is_read";
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env("RDMSG_TRANSPORT", value)
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn variable_for_the_transport_may_have_any_case() {
    for value in ["TCP", "tcp", "Tcp"] {
        let output = bind_with_variable(value);
        assert!(output.contains("over [Tcp];"), "{value}: {output}");
    }
}

#[test]
fn misspelled_transport_variable_is_error() {
    let output = bind_with_variable("rmda");
    let error = "invalid configuration: transport is \"rmda\" in RDMSG_TRANSPORT, allowed is auto, \
                 rdma, tcp or memory;";
    assert_eq!(output.matches(error).count(), 2, "{output}");
}

#[test]
#[ignore = "run by other tests, with the variable set"]
fn variable_for_the_transport_is_read() {
    match Listener::bind("127.0.0.1:0") {
        Ok(listener) => println!("over {:?};", listener.transports()),
        Err(error) => {
            println!("{error};");
            println!("{};", Endpoint::connect("127.0.0.1:1").unwrap_err());
        }
    }
}

#[test]
fn connect_to_unspecified_address_reaches_this_host() {
    for (all, host) in [("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]")] {
        let port = echo(&format!("{all}:0")).port();
        let host: SocketAddr = format!("{host}:{port}").parse().unwrap();
        for scheme in ["tcp", "auto"] {
            let address = format!("{scheme}://{all}:{port}");
            let endpoint = connector().connect(&address).unwrap();
            exchange(&endpoint);
            if endpoint.info().transport == Transport::Tcp {
                assert_eq!(endpoint.peer_addr(), host, "{address}");
            }
        }
    }
}

#[test]
fn interfaces_of_addresses_are_looked_up_by_name() {
    let expected = SocketAddr::from(SocketAddrV6::new("fe80::1".parse().unwrap(), 7471, 0, 1));
    for text in [
        "[fe80::1%lo]:7471",
        "tcp://[fe80::1%lo]:7471",
        "[fe80::1%1]:7471",
    ] {
        assert_eq!(
            text.to_addresses().unwrap().as_slice(),
            [expected],
            "{text}"
        );
    }
    for host in ["fe80::1%lo", "fe80::1%1"] {
        let found = (host, 7471).to_addresses().unwrap();
        assert_eq!(found.as_slice(), [expected], "{host}");
    }
    let error = "[fe80::1%none]:7471"
        .to_addresses()
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "cannot look up the address [fe80::1%none]:7471: there is no network interface none"
    );
    let ip: IpAddr = "::1".parse().unwrap();
    assert_eq!("[::1]:1".to_addresses().unwrap().as_slice()[0].ip(), ip);
}

#[cfg(feature = "tokio")]
mod over_tokio {
    use rdmsg::tokio as ours;

    use super::*;

    #[tokio::test]
    async fn tokio_connect_accepts_transport_schemes() {
        let addr = echo("tcp://127.0.0.1:0");
        let connector = connector();
        let text = format!("tcp://{addr}");
        for endpoint in [
            ours::Endpoint::connect(&text).await.unwrap(),
            ours::Endpoint::connect_with(&connector, &*text)
                .await
                .unwrap(),
            ours::Endpoint::connect(addr).await.unwrap(),
        ] {
            assert_eq!(endpoint.peer_addr(), addr);
            endpoint.send(b"hello").await.unwrap();
            assert_eq!(*endpoint.recv().await.unwrap(), *b"hello");
        }
        let listener = ours::StreamListener::bind("tcp://127.0.0.1:0")
            .await
            .unwrap();
        let text = format!("TCP://{}", listener.local_addr().unwrap());
        for with in [true, false] {
            let client = async {
                if with {
                    ours::Stream::connect_with(&connector, &text).await
                } else {
                    ours::Stream::connect(text.clone()).await
                }
            };
            let (client, server) = tokio::join!(client, listener.accept());
            assert_eq!(client.unwrap().local_addr().unwrap(), server.unwrap().1);
        }
    }

    #[tokio::test]
    async fn invalid_address_is_named() {
        let begins = "cannot look up the address tcp://no port: ";
        let error = ours::Endpoint::connect("tcp://no port").await.unwrap_err();
        assert!(error.to_string().starts_with(begins), "{error}");
        let error = ours::Stream::connect("tcp://no port").await.unwrap_err();
        assert!(error.to_string().starts_with(begins), "{error}");
    }
}
