//! Tests of the unmodified codecs of tokio-util on streams of rdmsg and of TCP.

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio_util::codec::{Framed, LengthDelimitedCodec};
use toolbox::pattern;

use super::stage::{Service, connect, run};

const FRAMES: usize = 60;

fn frame(number: usize) -> Bytes {
    let len = [0, 1, 100, 20_000, 300_000][number % 5];
    pattern(number as u64, len).into()
}

#[test]
fn frames_stay_frames() {
    run(async {
        let service = Service::start(|socket, _| async {
            let frames = Framed::new(socket, LengthDelimitedCodec::new());
            let (sink, stream) = frames.split();
            let frames = stream.map(|frame| frame.map(bytes::BytesMut::freeze));
            Ok(frames.forward(sink).await?)
        })
        .await;
        for options in service.clients() {
            let socket = connect(&options).await;
            let frames = Framed::new(socket, LengthDelimitedCodec::new());
            let (mut sink, mut stream) = frames.split();
            let sending = tokio::spawn(async move {
                for number in 0..FRAMES {
                    sink.feed(frame(number)).await.unwrap();
                }
                sink.close().await.unwrap();
            });
            for number in 0..FRAMES {
                let received = stream.next().await.unwrap().unwrap();
                assert!(received == frame(number), "{number}");
            }
            assert!(stream.next().await.is_none());
            sending.await.unwrap();
        }
        service.stop().await;
    });
}
