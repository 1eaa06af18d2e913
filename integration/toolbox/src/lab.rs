use std::{
    env, fs,
    net::{IpAddr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use crate::{Deadline, TIME_LIMIT, open_fds, resources::resources};

/// The values of the environment variables that the lab sets.
#[derive(Debug, Clone)]
pub struct Lab {
    /// The name of this host: `a`, or `b` for the second host.
    pub host: String,
    /// The name of the RDMA device.
    pub device: String,
    /// The IPv4 address of this host.
    pub addr: IpAddr,
    /// The IPv4 address of the other host. If there is only one host, the address of this host.
    pub peer: IpAddr,
    /// The IPv6 address of this host.
    pub addr6: IpAddr,
    /// The IPv6 address of the other host. If there is only one host, the address of this host.
    pub peer6: IpAddr,
    /// The folder for result files, which is kept after the run.
    pub results: PathBuf,
}

/// The objects on the RDMA device, and the number of open descriptors of this process.
#[derive(Debug)]
pub struct Usage {
    objects: String,
    descriptors: usize,
}

impl Lab {
    /// Reads the lab's environment variables and checks that the RDMA device exists.
    ///
    /// # Panics
    ///
    /// If there is no RDMA device. A device test must not pass without a device.
    pub fn get() -> Self {
        // The logger writes to the captured output of the test, which the harness prints if the
        // test fails. By default, the logger writes only errors. RUST_LOG selects other levels.
        let _ = env_logger::builder().is_test(true).try_init();
        Self::find()
            .unwrap_or_else(|error| panic!("{error:#}: run the device tests with integration/test"))
    }

    /// Reads the lab's environment variables and checks that the RDMA device exists.
    ///
    /// # Errors
    ///
    /// If a variable is missing or invalid, or if the device does not exist. The error names the
    /// variable or the device.
    pub fn find() -> Result<Self> {
        fn var(name: &str) -> Result<String> {
            env::var(name).with_context(|| format!("{name} is not set: run this in the lab"))
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

    /// Returns whether this program runs in the lab.
    pub fn is_here() -> bool {
        env::var_os("LAB_HOST").is_some()
    }

    /// Returns this host's address with `port`. Port 0 selects a free port.
    pub fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.addr, port)
    }

    /// Returns the source address for a test that connects without the library, with direct calls
    /// to the connection manager. On RoCE, returns `None`. iWARP shares its ports with TCP, but the
    /// kernel's connection manager can choose a port that TCP already uses. On iWARP, this function
    /// therefore returns an address with a port that is free for TCP.
    ///
    /// # Panics
    ///
    /// If no port is free.
    pub fn source(&self) -> Option<SocketAddr> {
        let free = || TcpListener::bind(self.at(0)).and_then(|free| free.local_addr());
        self.is_iwarp().then(|| free().unwrap())
    }

    /// Returns the other host's address with `port`.
    pub fn peer_at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.peer, port)
    }

    /// Returns the value of a hardware counter of the device, for instance `send_rnr_err`.
    ///
    /// # Panics
    ///
    /// If the device has no such counter, or if its value is not a number.
    pub fn counter(&self, name: &str) -> u64 {
        let text = self.attribute(&format!("ports/1/hw_counters/{name}"));
        text.trim()
            .parse()
            .unwrap_or_else(|_| panic!("{name}: {text}"))
    }

    fn attribute(&self, name: &str) -> String {
        let path = format!("/sys/class/infiniband/{}/{name}", self.device);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// Returns the number of RNR NAKs that this device has sent and received. The number is always
    /// 0 on iWARP, which has no RNR NAKs: there, a missing receive breaks the connection.
    pub fn rnr_naks(&self) -> u64 {
        if self.is_iwarp() {
            return 0;
        }
        self.counter("rcvd_rnr_err") + self.counter("send_rnr_err")
    }

    /// Returns whether the device is an iWARP device (RNIC), according to its `node_type` in sysfs.
    ///
    /// # Panics
    ///
    /// If there is no such device.
    pub fn is_iwarp(&self) -> bool {
        self.attribute("node_type").contains("RNIC")
    }

    /// Returns the numbers of objects on the device, as `rdma resource show` prints them.
    ///
    /// # Panics
    ///
    /// If the kernel does not report the numbers.
    pub fn resources(&self) -> String {
        resources(&self.device).unwrap_or_else(|error| {
            panic!("cannot count the objects of RDMA devices through netlink: {error:#}")
        })
    }

    /// Returns the usage of this process.
    pub fn usage(&self) -> Usage {
        Usage {
            objects: self.resources(),
            descriptors: open_fds(),
        }
    }

    /// Waits until the usage is not above `before`: the objects are the same, and the number of
    /// open descriptors is not higher. A driver can free a queue pair some time after the call that
    /// destroys it. A thread that starts or ends can open a file for a short time, also while the
    /// test determines `before`.
    ///
    /// # Panics
    ///
    /// If the usage is still higher after [`TIME_LIMIT`].
    #[track_caller]
    pub fn assert_no_leak(&self, before: &Usage) {
        let mut deadline = Deadline::after(TIME_LIMIT);
        loop {
            let now = self.usage();
            if now.objects == before.objects && now.descriptors <= before.descriptors {
                return;
            }
            assert!(!deadline.is_over(), "leaked: {now:?}, before: {before:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}
