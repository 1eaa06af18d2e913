//! A web server that uses axum. It accepts connections over rdmsg and, with the option `--tcp`,
//! over plain TCP. `axum::serve` accepts either listener.

use std::{net::SocketAddr, process::ExitCode};

use clap::Parser;
use rdmsg::{
    Engine,
    tokio::{PeerAddr, StreamListener},
};
use services::{
    Result, greeter,
    options::ServerOptions,
    run,
    server::{finish, stop_on_signals},
};
use tokio::net::TcpListener;

#[derive(Parser)]
#[command(
    version,
    about = "Serves HTTP/1 and HTTP/2 with axum: / returns a greeting, /echo the request body."
)]
struct Program {
    #[command(flatten)]
    options: ServerOptions,
}

fn main() -> ExitCode {
    let Program { options } = Program::parse();
    run("axum_server", options.debug, serve(&options))
}

async fn serve(options: &ServerOptions) -> Result<()> {
    let stop = stop_on_signals()?;
    let engine = Engine::new()?;
    let listener = rdmsg::Listener::builder()
        .config(&options.config())
        .engine(&engine)
        .bind_stream(options.address)
        .and_then(StreamListener::from_std)?;
    println!("listening on {}", listener.local_addr()?);
    let over_rdmsg = greeter::serve::<_, PeerAddr>(listener, stop.clone());
    let over_tcp = async {
        let Some(address) = options.tcp else {
            return Ok(());
        };
        let listener = TcpListener::bind(address).await?;
        println!("listening on {} for plain TCP", listener.local_addr()?);
        greeter::serve::<_, SocketAddr>(listener, stop.clone()).await
    };
    let time_limit = async {
        stop.cancelled().await;
        tokio::time::sleep(options.patience()).await;
    };
    tokio::select! {
        served = async { tokio::try_join!(over_rdmsg, over_tcp) } => drop(served?),
        () = time_limit => println!("some requests were cut off, because they did not end in time"),
    }
    finish(engine, options.patience()).await
}
