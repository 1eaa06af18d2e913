//! A client of an echo server. The client continues after a restart of the server.
//!
//! The client keeps each question until the answer arrives. When the connection is lost, the client
//! connects again and repeats the unanswered questions. To see this, start `echo_threads` on one
//! host and this program on another. Then kill the server and start the server again.

use std::{collections::BTreeMap, net::SocketAddr, process::ExitCode, thread, time::Duration};

use clap::Parser;
use cm_examples::{Result, end, fill, init_debug, service::config};
use rdmsg::{Completion, Connector, Error, Outgoing, Persistent, PersistentEvent};

#[derive(Parser)]
#[command(
    version,
    about = "Sends questions to an echo server, and continues after a restart of the server."
)]
struct Options {
    /// The address and port of the server
    address: SocketAddr,
    /// The number of questions
    #[arg(short, long, default_value_t = 100)]
    count: u64,
    /// The size of the questions in bytes
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// The pause in milliseconds between two questions
    #[arg(short, long, default_value_t = 100)]
    interval: u64,
    /// Show the log of the library
    #[arg(short, long)]
    debug: bool,
}

/// The unanswered questions, by number.
type Open = BTreeMap<u64, Vec<u8>>;

fn main() -> ExitCode {
    let options = Options::parse();
    init_debug(options.debug);
    end("echo_persistent", run(&options))
}

fn run(options: &Options) -> Result<()> {
    let client = Connector::new()
        .config(&config())
        .persist(options.address)?;
    let mut open = Open::new();
    for number in 0..options.count {
        let mut question = vec![0; options.size.max(8)];
        fill(number, &mut question);
        question[..8].copy_from_slice(&number.to_le_bytes());
        ask(&client, number, &question)?;
        open.insert(number, question);
        while open.contains_key(&number) {
            take(&client, &mut open)?;
        }
        println!("{} answers", number + 1);
        thread::sleep(Duration::from_millis(options.interval));
    }
    client.close()?;
    println!("closed: each question has its answer");
    Ok(())
}

/// Sends a question. Waits while the client is connecting. Returns `Ok` even if the connection is
/// lost and the question is not sent, because the client repeats all open questions after a loss.
fn ask(client: &Persistent, number: u64, question: &[u8]) -> Result<()> {
    match client.send(Outgoing::from(question).with_id(number)) {
        Ok(()) | Err(Error::NotConnected) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn take(client: &Persistent, open: &mut Open) -> Result<()> {
    match client.next_event()? {
        PersistentEvent::Connected { peer, transport } => {
            println!("connected to {peer} over {transport}");
        }
        PersistentEvent::Completion(Completion::Received(answer)) => {
            let number = answer
                .first_chunk()
                .ok_or("the answer is too short for a number")?;
            let number = u64::from_le_bytes(*number);
            // The client may repeat a question that the server has already received. The server
            // then answers twice. So ignore an answer to a question that is no longer open.
            if let Some(question) = open.remove(&number)
                && *answer != *question
            {
                return Err(
                    format!("the answer to question {number} differs from the question").into(),
                );
            }
        }
        PersistentEvent::Lost {
            reason,
            unacknowledged,
        } => {
            println!("lost: {reason}; {unacknowledged:?} may not have arrived");
            // The server may have acknowledged a question and ended before it answered. Therefore
            // repeat all open questions, not only the unacknowledged questions.
            for (number, question) in open {
                ask(client, *number, question)?;
            }
        }
        // Ignore other events, such as acknowledgements. Only the answer shows that the server has
        // processed a question.
        _ => {}
    }
    Ok(())
}
