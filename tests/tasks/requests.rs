//! Tests of tasks that inspect requests, and accept or reject them.

use std::{future::poll_fn, sync::Arc};

use rdmsg::{
    CloseReason, Config, Error, Listener, Request,
    tokio::{Endpoint, RequestListener},
};

use super::{
    cut::drop_after_polls,
    stage::{connector, ip_and_transport, with_time_to_connect},
    tokio::on_each,
};

async fn listener() -> RequestListener {
    let builder = Listener::builder().config(&with_time_to_connect(&Config::default()));
    RequestListener::bind_with(&builder, (ip_and_transport().0, 0))
        .await
        .unwrap()
}

/// Connects with the private data `data`.
async fn connect(listener: &RequestListener, data: &[u8]) -> Result<Endpoint, Error> {
    let connector = connector().private_data(data);
    Endpoint::connect_with(&connector, listener.local_addr()).await
}

fn reason(result: Result<Endpoint, Error>) -> CloseReason {
    match result {
        Err(Error::Connect { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn task_accepts_and_rejects_requests() {
    on_each(|| async {
        let listener = listener().await;
        let serving = async {
            let mut accepted = Vec::new();
            for _ in 0..6 {
                let request = listener.request().await.unwrap();
                assert_eq!(request.local_addr().port(), listener.local_addr().port());
                assert_eq!(request.peer_addr().ip(), ip_and_transport().0);
                if request.private_data() == b"known" {
                    let request = request.label("alice");
                    accepted.push(request.accept_with(b"welcome").await.unwrap());
                } else {
                    request.reject(b"unknown").unwrap();
                }
            }
            accepted
        };
        let connecting = async {
            let mut connected = Vec::new();
            for _ in 0..3 {
                connected.push(connect(&listener, b"known").await.unwrap());
                match reason(connect(&listener, b"a guess").await) {
                    CloseReason::Rejected { data, .. } => assert_eq!(*data, *b"unknown"),
                    other => panic!("{other}"),
                }
            }
            connected
        };
        let (accepted, connected) = tokio::join!(serving, connecting);
        for (near, far) in connected.iter().zip(&accepted) {
            assert_eq!(near.get_ref().info().peer_data, b"welcome");
            assert_eq!(far.get_ref().info().label.as_deref(), Some("alice"));
            near.send(b"question").await.unwrap();
            assert_eq!(far.recv().await.unwrap(), b"question");
        }
    });
}

#[test]
fn dropped_accept_ends_the_request() {
    on_each(|| async {
        let listener = listener().await;
        for times in 0..40 {
            let serving = async {
                let accepting = listener.request().await.unwrap().accept();
                match times {
                    0 => None, // drops the future before its first poll
                    _ => drop_after_polls(accepting, times - 1).await,
                }
            };
            let (accepted, connected) = tokio::join!(serving, connect(&listener, b""));
            drop(accepted);
            let ended = match connected {
                // The future was dropped after the accept had completed, or at least after the
                // reply had been sent.
                Ok(near) => match near.recv().await {
                    Err(Error::Disconnected(reason)) => reason,
                    other => panic!("{other:?}"),
                },
                Err(error) => reason(Err(error)),
            };
            let by_program =
                matches!(&ended, CloseReason::Rejected { data, .. } if data.is_empty());
            let closed = ended == CloseReason::PeerClosed;
            assert!(by_program || (closed && times > 0), "{times}: {ended}");
        }
        // The listener still accepts connections.
        let serving = async { listener.request().await.unwrap().accept().await };
        let (far, near) = tokio::join!(serving, connect(&listener, b""));
        near.unwrap().send(b"wanted").await.unwrap();
        assert_eq!(far.unwrap().recv().await.unwrap(), b"wanted");
    });
}

#[test]
fn dropped_wait_loses_no_request() {
    on_each(|| async {
        let listener = Arc::new(listener().await);
        let address = listener.local_addr();
        let connecting = tokio::spawn(async move {
            let (connector, mut connected) = (connector(), Vec::new());
            for _ in 0..20 {
                let near = Endpoint::connect_with(&connector, address).await;
                connected.push(near.unwrap());
            }
            connected
        });
        let mut accepted = Vec::new();
        while accepted.len() < 20 {
            if let Some(request) = drop_after_polls(listener.request(), 1).await {
                accepted.push(request.unwrap().accept().await.unwrap());
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(connecting.await.unwrap().len(), 20);
    });
}

#[test]
fn close_wakes_tasks_that_wait_for_requests() {
    on_each(|| async {
        let listener = Arc::new(listener().await);
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let listener = Arc::clone(&listener);
                tokio::spawn(async move { listener.request().await.map(drop) })
            })
            .collect();
        tokio::task::yield_now().await;
        listener.close();
        for task in waiting {
            assert!(matches!(task.await.unwrap(), Err(Error::ListenerClosed)));
        }
    });
}

#[test]
fn request_is_accepted_on_any_runtime() {
    let listener = rdmsg::RequestListener::bind((ip_and_transport().0, 0)).unwrap();
    let connecting = connector().start(listener.local_addr()).unwrap();
    smol::block_on(async {
        let accepting = async {
            let request: Request = poll_fn(|cx| listener.poll_request(cx)).await.unwrap();
            request.start_accept(b"welcome").unwrap().await.unwrap()
        };
        let (near, far) = smol::future::zip(connecting, accepting).await;
        let near = near.unwrap();
        assert_eq!(near.info().peer_data, b"welcome");
        near.send(b"question").unwrap();
        assert_eq!(poll_fn(|cx| far.poll_recv(cx)).await.unwrap(), b"question");
    });
}
