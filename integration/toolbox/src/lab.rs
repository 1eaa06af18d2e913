use std::{
    env, fs,
    net::{IpAddr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};

use crate::resources::resources;

/// The lab's environment of this program.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Lab {
    /// This host's name: `a`, or `b` for the second host.
    pub host: String,
    /// The RDMA device's name.
    pub device: String,
    /// This host's address.
    pub addr: IpAddr,
    /// The other host's address. With one host, its own.
    pub peer: IpAddr,
    /// This host's IPv6 address.
    pub addr6: IpAddr,
    /// The other host's IPv6 address. With one host, its own.
    pub peer6: IpAddr,
    /// The folder for results, which stays after the run.
    pub results: PathBuf,
}

impl Lab {
    /// Reads the lab's environment and makes sure that there is a device.
    ///
    /// # Panics
    ///
    /// Without a device: there is nothing to test then, and no test may pass.
    #[must_use]
    pub fn get() -> Self {
        // A failed test prints the log's warnings; RUST_LOG selects more.
        let _ = env_logger::builder().is_test(true).try_init();
        Self::find()
            .unwrap_or_else(|error| panic!("{error:#}: run the device tests with integration/test"))
    }

    /// Reads the lab's environment and makes sure that there is a device.
    ///
    /// # Errors
    ///
    /// Names the missing variable or device.
    pub fn find() -> Result<Self> {
        fn var(name: &str) -> Result<String> {
            env::var(name).with_context(|| format!("{name} is not set, as it is in the lab"))
        }
        fn addr(name: &str) -> Result<IpAddr> {
            var(name)?
                .parse()
                .with_context(|| format!("{name} is not an address"))
        }
        let device = var("LAB_DEV")?;
        ensure!(
            Path::new("/sys/class/infiniband").join(&device).exists(),
            "there is no RDMA device {device}"
        );
        Ok(Self {
            host: var("LAB_HOST")?,
            device,
            addr: addr("LAB_ADDR")?,
            peer: addr("LAB_PEER")?,
            addr6: addr("LAB_ADDR6")?,
            peer6: addr("LAB_PEER6")?,
            results: var("LAB_RESULTS")?.into(),
        })
    }

    /// Whether this program runs in the lab.
    #[must_use]
    pub fn is_here() -> bool {
        env::var_os("LAB_HOST").is_some()
    }

    /// This host's address with a port; port 0 takes a free one.
    #[must_use]
    pub fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.addr, port)
    }

    /// Returns the source address for a connect by raw calls of the connection manager. On iWARP
    /// its port is free over TCP as well, because the connection manager does not check this.
    ///
    /// # Panics
    ///
    /// When no port is free.
    #[must_use]
    pub fn source(&self) -> Option<SocketAddr> {
        let free = || TcpListener::bind(self.at(0)).and_then(|free| free.local_addr());
        self.is_iwarp().then(|| free().unwrap())
    }

    /// The other host's address with a port.
    #[must_use]
    pub fn peer_at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.peer, port)
    }

    /// Reads a hardware counter of the device, for instance `send_rnr_err`.
    ///
    /// # Panics
    ///
    /// If the device has no such counter.
    #[must_use]
    pub fn counter(&self, name: &str) -> u64 {
        let path = format!(
            "/sys/class/infiniband/{}/ports/1/hw_counters/{name}",
            self.device
        );
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        text.trim()
            .parse()
            .unwrap_or_else(|_| panic!("{path}: {text}"))
    }

    /// Returns the number of RNR NAKs that this device has sent or received. On iWARP there is no
    /// RNR NAK: a missing receive breaks the connection.
    #[must_use]
    pub fn rnr_naks(&self) -> u64 {
        if self.is_iwarp() {
            return 0;
        }
        self.counter("rcvd_rnr_err") + self.counter("send_rnr_err")
    }

    /// Whether the device speaks iWARP: `node_type` of its folder in sysfs.
    ///
    /// # Panics
    ///
    /// When there is no such device.
    #[must_use]
    pub fn is_iwarp(&self) -> bool {
        let path = format!("/sys/class/infiniband/{}/node_type", self.device);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        text.contains("RNIC")
    }

    /// Returns the counts of objects on the device, as `rdma resource show` prints them.
    ///
    /// # Panics
    ///
    /// If the kernel does not report them.
    #[must_use]
    pub fn resources(&self) -> String {
        resources(&self.device).unwrap_or_else(|error| panic!("{error:#}"))
    }
}
