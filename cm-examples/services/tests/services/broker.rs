//! Tests of the broker with a subscriber that receives nothing for a while.

use std::net::SocketAddr;

use rdmsg::{
    Config, Engine,
    tokio::{Endpoint, Listener},
};
use services::broker::{FromBroker, Hub, QueueLimits, ToBroker, publish};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::stage::{endpoint, ip_and_transport, run};

const LIMITS: QueueLimits = QueueLimits {
    messages: 100,
    bytes: 64 * 1024,
};

/// The number of messages that the test publishes on each of its two topics.
const MESSAGES: u64 = 3000;
/// The number of messages per topic in a batch. After each batch, the fast subscriber (`prompt`)
/// receives its messages.
const TOGETHER: u64 = 25;

fn start(stop: &CancellationToken) -> (SocketAddr, tokio::task::JoinHandle<()>) {
    let engine = Engine::new().unwrap();
    let config = Config::default();
    let listener = rdmsg::Listener::builder()
        .config(&config)
        .engine(&engine)
        .bind((ip_and_transport().0, 0))
        .map(Listener::from)
        .unwrap();
    let address = listener.local_addr();
    let hub = Hub::new(LIMITS);
    let stop = stop.clone();
    let serving = tokio::spawn(async move {
        let mut clients = JoinSet::new();
        while let Some(client) = stop.run_until_cancelled(listener.accept()).await {
            clients.spawn(hub.clone().serve(client.unwrap(), stop.clone()));
        }
        while let Some(client) = clients.join_next().await {
            client.unwrap().unwrap();
        }
    });
    (address, serving)
}

async fn subscriber(address: SocketAddr, config: Config) -> Endpoint {
    let endpoint = endpoint(address, config).await;
    endpoint.send(&ToBroker::subscribe("news")).await.unwrap();
    // The broker executes the requests of a client in order. The statistics therefore show that the
    // subscription is active.
    statistics(&endpoint).await;
    endpoint
}

async fn statistics(endpoint: &Endpoint) -> String {
    endpoint.send(&ToBroker::ask()).await.unwrap();
    let message = endpoint.recv().await.unwrap();
    match FromBroker::parse(&message).unwrap() {
        FromBroker::Statistics(text) => text.to_owned(),
        other => panic!("{other:?}"),
    }
}

/// Returns the number that follows `name` in the statistics.
fn number(statistics: &str, name: &str) -> u64 {
    let mut words = statistics.split(' ').skip_while(|word| *word != name);
    words.nth(1).unwrap().parse().unwrap()
}

/// Receives the next message. Returns the number in its payload, and the number of dropped messages
/// reported before it.
async fn next(endpoint: &Endpoint) -> (u64, u64) {
    let mut missed = 0;
    loop {
        let message = endpoint.recv().await.unwrap();
        match FromBroker::parse(&message).unwrap() {
            FromBroker::Missed(count) => missed += count,
            FromBroker::Message { topic, payload } => {
                assert_eq!((topic, payload.len()), ("news", 1000));
                return (u64::from_be_bytes(payload[..8].try_into().unwrap()), missed);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn slow_subscriber_blocks_no_other_and_learns_loss() {
    run(async {
        let stop = CancellationToken::new();
        let (address, serving) = start(&stop);
        let config = Config::default();
        let slow = subscriber(address, config.clone().with(|c| c.receive_window = Some(2))).await;
        let prompt = subscriber(address, config.clone()).await;
        let publisher = endpoint(address, config).await;
        let mut payload = vec![0; 1000];
        for number in 0..MESSAGES {
            payload[..8].copy_from_slice(&number.to_be_bytes());
            publisher
                .send(&publish("news", &payload).unwrap())
                .await
                .unwrap();
            publisher
                .send(&publish("other", b"").unwrap())
                .await
                .unwrap();
            if number % TOGETHER == TOGETHER - 1 {
                for expected in number + 1 - TOGETHER..=number {
                    assert_eq!(
                        next(&prompt).await,
                        (expected, 0),
                        "the broker must drop no message of the prompt subscriber"
                    );
                }
            }
        }
        let now = statistics(&publisher).await;
        assert_eq!(number(&now, "subscribers"), 2, "{now}");
        assert_eq!(number(&now, "published"), 2 * MESSAGES, "{now}");
        assert!(number(&now, "waiting-messages") <= LIMITS.messages as u64);
        let most = number(&now, "most-waiting-bytes");
        assert!(most <= LIMITS.bytes as u64 && most > 60_000, "{now}");
        // The slow subscriber still receives the two messages in its receive window, the two that
        // the broker is sending, and the messages in its queue. The broker has dropped all others.
        let missed = number(&now, "missed");
        assert!(missed > MESSAGES - 200, "{now}");
        let (mut expected, mut total_missed) = (0, 0);
        while expected < MESSAGES {
            let (number, missed) = next(&slow).await;
            assert_eq!(
                number,
                expected + missed,
                "the broker must report each gap at its position"
            );
            expected = number + 1;
            total_missed += missed;
        }
        assert_eq!(total_missed, missed);
        slow.close().await.unwrap();
        publisher.close().await.unwrap();
        stop.cancel();
        // The broker has ended, and has closed the connection normally.
        let end = prompt.recv().await.unwrap_err().to_string();
        assert_eq!(end, "the connection has ended: closed by the peer");
        serving.await.unwrap();
    });
}
