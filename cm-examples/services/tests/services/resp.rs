//! Tests of the RESP protocol on streams of rdmsg and of TCP, including malformed requests.

use std::sync::Arc;

use services::{
    net::Socket,
    resp::{self, Client, Reply},
    store::Store,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::stage::{Service, connect, run};

async fn service() -> Service {
    let store = Arc::new(Store::default());
    Service::start(move |socket, stop| {
        let store = Arc::clone(&store);
        async move { resp::session(socket, &store, stop).await }
    })
    .await
}

/// Sends `bytes`, and returns all bytes that the server sends until it closes the connection.
async fn said(mut socket: Socket, bytes: &[u8]) -> String {
    socket.write_all(bytes).await.unwrap();
    let mut said = String::new();
    socket.read_to_string(&mut said).await.unwrap();
    said
}

#[test]
fn conversation_matches_the_original_server() {
    run(async {
        let service = service().await;
        for options in service.clients() {
            let mut client = Client::new(connect(&options).await);
            for (request, reply) in [
                ("FLUSHALL", "OK"),
                ("PING", "PONG"),
                ("ping hello", "\"hello\""),
                ("ECHO hello", "\"hello\""),
                ("GET name", "(nil)"),
                ("SET name value", "OK"),
                ("GET name", "\"value\""),
                ("EXISTS name name other", "(integer) 2"),
                ("INCR name", "(error) ERR value is not an integer"),
                ("INCR count", "(integer) 1"),
                ("INCR count", "(integer) 2"),
                ("SET most 9223372036854775807", "OK"),
                ("INCR most", "(error) ERR the value would overflow"),
                ("RPUSH list b c", "(integer) 2"),
                ("LPUSH list a", "(integer) 3"),
                ("LRANGE list 0 -1", "1) \"a\"\n2) \"b\"\n3) \"c\""),
                ("LRANGE list -2 100", "1) \"b\"\n2) \"c\""),
                ("LRANGE list 2 1", "(empty array)"),
                (
                    "GET list",
                    "(error) WRONGTYPE Operation against a key holding the wrong kind of value",
                ),
                ("DEL name list other", "(integer) 2"),
                ("DBSIZE", "(integer) 2"),
                ("CONFIG GET save", "(empty array)"),
                ("COMMAND DOCS", "(empty array)"),
                (
                    "GET",
                    "(error) ERR wrong number of arguments for 'get' command",
                ),
                ("NOTHING", "(error) ERR unknown command 'NOTHING'"),
                ("QUIT", "OK"),
            ] {
                let words: Vec<_> = request.split(' ').collect();
                let got = client.ask(&words).await.unwrap().to_string();
                assert_eq!(got, reply, "{request}");
            }
            let error = client.reply().await.unwrap_err().to_string();
            assert_eq!(error, "the server closed the connection");
        }
        service.stop().await;
    });
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    const REQUESTS: i64 = 10_000;
    run(async {
        let service = service().await;
        for options in service.clients() {
            let mut client = Client::new(connect(&options).await);
            client.push(&["DEL", "count"]);
            for _ in 0..REQUESTS {
                client.push(&["INCR", "count"]);
            }
            client.flush().await.unwrap();
            client.reply().await.unwrap();
            for number in 1..=REQUESTS {
                assert_eq!(client.reply().await.unwrap(), Reply::Integer(number));
            }
            // Send the requests byte by byte. The last two requests are inline commands, which a
            // user can type.
            let mut socket = connect(&options).await;
            for byte in b"*2\r\n$4\r\nECHO\r\n$4\r\n\r\n\r\n\r\n\r\n PING  x \r\nQUIT\n" {
                socket.write_all(&[*byte]).await.unwrap();
            }
            let said = said(socket, b"").await;
            assert_eq!(said, "$4\r\n\r\n\r\n\r\n$1\r\nx\r\n+OK\r\n");
        }
        service.stop().await;
    });
}

#[test]
fn malformed_request_ends_only_its_connection() {
    run(async {
        let service = service().await;
        let long = "x".repeat(70_000);
        for options in service.clients() {
            let mut other = Client::new(connect(&options).await);
            for (wrong, reply) in [
                ("*x\r\n", "invalid multibulk length"),
                ("*99999999\r\n", "invalid multibulk length"),
                ("*1\r\n+4\r\n", "expected '$', got '+'"),
                ("*1\r\n\r\n", "expected '$', got ' '"),
                ("*1\r\n$-1\r\n", "invalid bulk length"),
                ("*1\r\n$99999999999\r\n", "invalid bulk length"),
                (
                    "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$33554430\r\n",
                    "invalid bulk length",
                ),
                (
                    "*1\r\n$4\r\nPINGS\r\n",
                    "an argument is longer than its length",
                ),
                (&long, "a line is too long"),
            ] {
                let said = said(connect(&options).await, wrong.as_bytes()).await;
                assert_eq!(said, format!("-ERR Protocol error: {reply}\r\n"));
                let reply = other.ask(&["PING"]).await.unwrap();
                assert_eq!(reply, Reply::Status("PONG".to_owned()));
            }
            // The server replies to the request before the malformed request, but not to the
            // request after it.
            let said = said(connect(&options).await, b"PING\r\n*x\r\nPING\r\n").await;
            let refused = "-ERR Protocol error: invalid multibulk length\r\n";
            assert_eq!(said, format!("+PONG\r\n{refused}"));
        }
        service.stop().await;
    });
}
