//! A client that uses the crate `redis` over Valkey's RDMA protocol: `redis_client ADDRESS`, for
//! example `redis_client 10.8.0.1:6379`.
//!
//! The crate `redis` accepts any tokio stream. Several tasks can send requests concurrently over
//! one connection.

use std::{env, error::Error, net::SocketAddr};

use rdmsg_valkey::tokio::Stream;
use redis::{
    AsyncCommands, AsyncConnectionConfig, RedisConnectionInfo, aio::MultiplexedConnection,
};

/// The number of tasks. Each task stores one value.
const TASKS: u8 = 8;
/// The length of a value in bytes. A value is longer than the server's receive buffer, which is 1
/// MiB by default.
const LEN: usize = 1_500_000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).ok_or("usage: redis_client ADDRESS")?;
    let address: SocketAddr = address.parse()?;
    let stream = Stream::connect(address).await?;
    let info = RedisConnectionInfo::default();
    // Disable the response timeout, which is half a second by default.
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = MultiplexedConnection::new_with_config(&info, stream, config);
    let (connection, driver) = connection.await?;
    // The driver reads and writes until all handles are dropped or the server closes the
    // connection.
    tokio::select! {
        result = work(connection) => result,
        () = driver => Err("the server has closed the connection".into()),
    }
}

async fn work(mut connection: MultiplexedConnection) -> Result<(), Box<dyn Error>> {
    let reply: String = redis::cmd("PING").query_async(&mut connection).await?;
    println!("{reply}");
    let tasks: Vec<_> = (0..TASKS)
        .map(|number| tokio::spawn(exchange(connection.clone(), number)))
        .collect();
    for task in tasks {
        task.await??;
    }
    println!("{TASKS} values of {LEN} bytes");
    Ok(())
}

async fn exchange(mut connection: MultiplexedConnection, number: u8) -> redis::RedisResult<()> {
    let (key, value) = (format!("task {number}"), vec![number; LEN]);
    let () = connection.set(&key, &value).await?;
    let stored: Vec<u8> = connection.get(&key).await?;
    assert!(stored == value, "value {number} differs");
    Ok(())
}
