//! Tests of copies that are interrupted and continued.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use rdmsg::{
    Config, Engine,
    tokio::{Endpoint, Listener},
};
use services::copy::{self, Copied, PIECE};
use tokio::task::JoinHandle;
use toolbox::pattern;

use super::stage::{Folder, endpoint, ip_and_transport, run};

const SIZE: u64 = 12 * PIECE + 12_345;

async fn start(folder: &Path) -> (SocketAddr, JoinHandle<()>) {
    let engine = Engine::new().unwrap();
    let config = Config::default();
    let listener = rdmsg::Listener::builder()
        .config(&config)
        .engine(&engine)
        .bind((ip_and_transport().0, 0))
        .map(Listener::from)
        .unwrap();
    let address = listener.local_addr();
    let folder: Arc<Path> = folder.into();
    let serving = tokio::spawn(async move {
        while let Ok(endpoint) = listener.accept().await {
            let folder = Arc::clone(&folder);
            tokio::spawn(async move {
                let _ = copy::serve(&endpoint, &folder, &mut |_, _| {}).await;
                let _ = endpoint.close().await;
            });
        }
    });
    (address, serving)
}

async fn connect(address: SocketAddr) -> Endpoint {
    endpoint(address, Config::default()).await
}

fn write_file(path: &Path, salt: u64) -> Vec<u8> {
    let bytes = pattern(salt, SIZE as usize);
    fs::write(path, &bytes).unwrap();
    bytes
}

/// Starts copying a file to the server, and aborts the connection after half of the file.
async fn cut_put(address: SocketAddr, file: &Path) {
    let endpoint = connect(address).await;
    let cut = endpoint.clone();
    let mut cutting = |at, size| {
        if at > size / 2 {
            cut.get_ref().abort(7);
        }
    };
    let error = copy::put(&endpoint, file, "file", &mut cutting).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("aborted by this side"), "{error}");
}

async fn put(address: SocketAddr, file: &Path) -> Copied {
    loop {
        let endpoint = connect(address).await;
        match copy::put(&endpoint, file, "file", &mut |_, _| {}).await {
            // Try again. The partial file is still locked, because the server has not detected the
            // end of the previous connection yet.
            Err(error) if error.to_string().contains("already being received") => {}
            copied => {
                endpoint.close().await.unwrap();
                return copied.unwrap();
            }
        }
    }
}

#[test]
fn interrupted_copy_resumes() {
    run(async {
        let folder = Folder::new("copy");
        let there: PathBuf = folder.path().join("there");
        fs::create_dir(&there).unwrap();
        let (address, _serving) = start(&there).await;
        let file = folder.path().join("here");
        let bytes = write_file(&file, 0);
        cut_put(address, &file).await;
        let copied = put(address, &file).await;
        assert!(copied.from > 0 && copied.from < SIZE, "{copied:?}");
        assert_eq!(copied.size, SIZE);
        assert!(fs::read(there.join("file")).unwrap() == bytes);
        assert!(!there.join("file.part").exists());

        // Now copy the file from the server.
        let back = folder.path().join("back");
        // `large_memory` limits the pieces in flight to two, so the client receives at most two
        // more pieces after the abort.
        let config = Config::default().with(|c| c.large_memory = 2 * PIECE);
        let endpoint = endpoint(address, config).await;
        let cut = endpoint.clone();
        let mut cutting = |at, size| {
            if at > size / 2 {
                cut.get_ref().abort(7);
            }
        };
        let error = copy::get(&endpoint, &back, "file", &mut cutting).await;
        error.unwrap_err();
        assert!(!back.exists());
        let endpoint = connect(address).await;
        let copied = copy::get(&endpoint, &back, "file", &mut |_, _| {}).await;
        let copied = copied.unwrap();
        assert!(copied.from > SIZE / 2, "{copied:?}");
        endpoint.close().await.unwrap();
        assert!(fs::read(&back).unwrap() == bytes);
    });
}

#[test]
fn part_of_another_file_is_not_resumed() {
    run(async {
        let folder = Folder::new("other");
        let (address, _serving) = start(folder.path()).await;
        let file = folder.path().join("here");
        write_file(&file, 0);
        cut_put(address, &file).await;
        let bytes = write_file(&file, 1);
        let copied = put(address, &file).await;
        assert_eq!((copied.from, copied.size), (0, SIZE));
        assert!(fs::read(folder.path().join("file")).unwrap() == bytes);
    });
}

#[test]
fn server_reports_its_refusal() {
    run(async {
        let folder = Folder::new("refused");
        let (address, _serving) = start(folder.path()).await;
        let file = folder.path().join("here");
        write_file(&file, 0);
        for name in ["../up", "/etc/passwd", "..", ".hidden", "x.part", "a/b"] {
            let endpoint = connect(address).await;
            let error = copy::put(&endpoint, &file, name, &mut |_, _| {}).await;
            let error = error.unwrap_err().to_string();
            let said = format!("the peer reports: {name} is not a permitted file name");
            assert_eq!(error, said);
        }
        let endpoint = connect(address).await;
        let path = folder.path().join("there");
        let error = copy::get(&endpoint, &path, "nothing", &mut |_, _| {}).await;
        let error = error.unwrap_err().to_string();
        let said = "the peer reports: nothing: No such file or directory (os error 2)";
        assert_eq!(error, said);
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            1,
            "the client must not leave a partial file"
        );
    });
}
