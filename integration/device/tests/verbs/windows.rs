//! Tests memory windows of type 2.

use rdmsg::{
    status::WcStatus,
    verbs::{
        AccessFlags, DeviceCapFlags, MemoryRegion, MemoryWindow, ProtectionDomain, QpType,
        RemoteAddr, SendWr, Sge, WcOpcode,
    },
};

use super::pair::{EINVAL, Pair, Setup, assert_none, bytes, completions, failure, success};

const READ: AccessFlags = AccessFlags::REMOTE_READ;

/// A pair, a memory region of its end `b`, and a window that can be bound to this region.
struct Scene {
    /// The window. The driver requires that the window is dropped before the pair. Fields are
    /// dropped in the order of declaration, so this field comes first.
    window: MemoryWindow,
    region: MemoryRegion,
    pair: Pair,
}

impl Scene {
    fn new() -> Self {
        let pair = Pair::new();
        let flags = pair.context.query_device().unwrap().device_cap_flags();
        assert!(
            flags.contains(DeviceCapFlags::MEM_WINDOW_TYPE_2B),
            "{flags}"
        );
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
        let region = MemoryRegion::new(&pair.pd, 4096, access).unwrap();
        region.copy_in(100, b"a lent message");
        Self {
            window: MemoryWindow::new(&pair.pd).unwrap(),
            region,
            pair,
        }
    }

    fn bind(&mut self, access: AccessFlags) {
        let Self {
            window,
            region,
            pair,
        } = self;
        let bound = pair
            .b
            .qp
            .bind_window(7, window, region, 100..114, access, true);
        bound.unwrap();
        let done = completions(&pair.b.cq, 1)[0];
        assert_eq!((done.wr_id(), done.opcode()), (7, WcOpcode::BIND_MW));
        assert_eq!(done.status(), WcStatus::SUCCESS);
    }

    fn invalidate(&mut self) {
        let qp = &self.pair.b.qp;
        qp.invalidate_window(8, &mut self.window, true).unwrap();
        let done = completions(&self.pair.b.cq, 1)[0];
        assert_eq!((done.wr_id(), done.opcode()), (8, WcOpcode::LOCAL_INV));
        assert_eq!(done.status(), WcStatus::SUCCESS);
    }

    /// Starts a READ of the bytes in the window, with the key `rkey`.
    fn read(&self, rkey: u32) {
        let addr = self.region.addr() + 100;
        let into = Sge::new(&self.pair.a.region, 0..14);
        let read = SendWr::read(9, into, RemoteAddr { addr, rkey }).signaled();
        self.pair.a.qp.post_send(&[read]).unwrap();
    }

    #[track_caller]
    fn assert_read(&self, rkey: u32) {
        self.pair.a.region.copy_in(0, &[0; 14]);
        self.read(rkey);
        success(&self.pair.a.cq);
        assert_eq!(bytes(&self.pair.a.region, 0, 14), b"a lent message");
    }

    #[track_caller]
    fn assert_refused(&self, rkey: u32) {
        self.read(rkey);
        assert_eq!(failure(&self.pair.a.cq).status, WcStatus::REM_ACCESS_ERR);
    }
}

#[test]
fn each_bind_has_a_key_until_its_invalidation() {
    let mut scene = Scene::new();
    let mut keys = vec![scene.window.rkey()];
    for _ in 0..3 {
        scene.bind(READ);
        let key = scene.window.rkey();
        assert!(scene.window.is_bound() && !keys.contains(&key));
        assert_eq!(key >> 8, keys[0] >> 8);
        keys.push(key);
        scene.assert_read(key);
        scene.invalidate();
    }
    scene.bind(READ);
    scene.assert_refused(keys[3]);
}

#[test]
fn invalidated_key_is_refused() {
    let mut scene = Scene::new();
    scene.bind(READ);
    scene.invalidate();
    assert!(!scene.window.is_bound());
    scene.assert_refused(scene.window.rkey());
}

#[test]
fn dropped_window_is_refused() {
    let mut scene = Scene::new();
    scene.bind(READ);
    let key = scene.window.rkey();
    scene.assert_read(key);
    scene.window = MemoryWindow::new(&scene.pair.pd).unwrap();
    scene.assert_refused(key);
}

#[test]
fn window_gives_only_its_access() {
    let mut scene = Scene::new();
    scene.bind(READ);
    let remote = RemoteAddr {
        addr: scene.region.addr() + 100,
        rkey: scene.window.rkey(),
    };
    let write = SendWr::write(1, Sge::new(&scene.pair.a.region, 0..4), remote);
    scene.pair.a.qp.post_send(&[write]).unwrap();
    assert_eq!(failure(&scene.pair.a.cq).status, WcStatus::REM_ACCESS_ERR);
    assert_eq!(bytes(&scene.region, 100, 14), b"a lent message");
}

#[test]
fn send_behind_a_bind_needs_no_wait() {
    let mut scene = Scene::new();
    let Scene {
        window,
        region,
        pair,
    } = &mut scene;
    for _ in 0..20 {
        let (a, b) = (&pair.a, &pair.b);
        let receive = rdmsg::verbs::RecvWr::new(1, Sge::new(&a.region, 64..68));
        a.qp.post_recv(&[receive]).unwrap();
        b.qp.bind_window(2, window, region, 100..114, READ, false)
            .unwrap();
        b.region.copy_in(0, &window.rkey().to_be_bytes());
        let send = SendWr::send(3, Sge::new(&b.region, 0..4)).signaled();
        b.qp.post_send(&[send]).unwrap();
        success(&a.cq);
        let key: [u8; 4] = bytes(&a.region, 64, 4).try_into().unwrap();
        let remote = RemoteAddr {
            addr: region.addr() + 100,
            rkey: u32::from_be_bytes(key),
        };
        let read = SendWr::read(4, Sge::new(&a.region, 0..14), remote).signaled();
        a.qp.post_send(&[read]).unwrap();
        success(&a.cq);
        assert_eq!(bytes(&a.region, 0, 14), b"a lent message");
        b.qp.invalidate_window(5, window, true).unwrap();
        let ids = completions(&b.cq, 2)
            .iter()
            .map(|done| done.wr_id())
            .collect::<Vec<_>>();
        assert_eq!(ids, [3, 5], "the unsignaled bind must have no completion");
    }
}

#[test]
fn region_without_bind_access_fails_the_request() {
    let mut scene = Scene::new();
    let Scene { window, pair, .. } = &mut scene;
    let qp = &pair.b.qp;
    qp.bind_window(1, window, &pair.b.region, 0..8, READ, false)
        .unwrap();
    assert_eq!(failure(&pair.b.cq).status, WcStatus::MW_BIND_ERR);
}

#[test]
fn impossible_requests_are_refused_before_posting() {
    let mut scene = Scene::new();
    let other = ProtectionDomain::new(&scene.pair.context).unwrap();
    let mut foreign = MemoryWindow::new(&other).unwrap();
    let datagram = Pair::with(
        Setup {
            qp_type: QpType::UD,
            ..Setup::default()
        },
        None,
    );
    let Scene {
        window,
        region,
        pair,
    } = &mut scene;
    let qp = &pair.b.qp;
    let refused = |result: Result<(), rdmsg::status::OsError>| {
        assert_eq!(result.unwrap_err().errno, EINVAL);
    };
    refused(qp.invalidate_window(1, window, true));
    for part in [0..0, 4000..4097, 4096..4097] {
        refused(qp.bind_window(1, window, region, part, READ, true));
    }
    refused(qp.bind_window(1, &mut foreign, region, 0..8, READ, true));
    let mut of_datagrams = MemoryWindow::new(&datagram.pd).unwrap();
    let region_there = MemoryRegion::new(&datagram.pd, 4096, AccessFlags::MW_BIND).unwrap();
    let there = &datagram.b.qp;
    refused(there.bind_window(1, &mut of_datagrams, &region_there, 0..8, READ, true));
    qp.bind_window(1, window, region, 0..8, READ, true).unwrap();
    refused(qp.bind_window(2, window, region, 0..8, READ, true));
    success(&pair.b.cq);
    qp.invalidate_window(3, window, true).unwrap();
    refused(qp.invalidate_window(4, window, true));
    success(&pair.b.cq);
    assert_none(&pair.b.cq);
}
