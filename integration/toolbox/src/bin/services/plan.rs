//! The servers, and who asks them for what.

/// A server, and who asks it for what.
pub(crate) struct Service {
    /// A script that starts, on the server's host, what the server is in front of; and one that
    /// ends it.
    pub(crate) behind: Option<[&'static str; 2]>,
    pub(crate) server: &'static str,
    /// A bridge on the clients' host, where they are not to know of the server.
    pub(crate) near: Option<&'static str>,
    pub(crate) clients: Vec<Client>,
    /// A client under which the network is cut.
    pub(crate) cut: Option<Cut>,
}

/// A client's command line, in which `RDMSG` and `TCP` stand for the server's addresses, `IP` for
/// that of its host, `PORT` for the port of plain TCP, `NEAR` for the address of the bridge on the
/// clients' host, `PAGE` for the bytes of a page and `N` for how many requests.
pub(crate) struct Client {
    pub(crate) line: &'static str,
    pub(crate) shows: Shows,
}

/// What tells that it worked.
pub(crate) enum Shows {
    /// It printed this.
    Text(&'static str),
    /// It wrote a page.
    Page,
    /// It printed how many of them there were in a second.
    Rate(&'static str),
}

/// A client that does not end by itself, or not soon.
pub(crate) struct Cut {
    pub(crate) line: &'static str,
    pub(crate) begun: Begun,
    /// What it says when the network is gone.
    pub(crate) error: &'static str,
}

/// What tells that it is at work.
pub(crate) enum Begun {
    /// It prints this.
    Says(&'static str),
    /// This command succeeds on the server's host.
    There(&'static str),
    /// It succeeds on its own.
    Here(&'static str),
}

/// Where clients write a page.
pub(crate) const PAGE_FILE: &str = "/tmp/page";

/// A certificate, on either host.
pub(crate) const CERTIFICATE: &str = "/tmp/services.pem";

/// What the library says of a peer of which nothing is heard any more.
const SILENT: &str = "the peer gives no sign of life";

/// What a bridge makes of it for a client that knows nothing of it.
const RESET: &str = "reset by peer";

/// nginx with a folder of its own.
const NGINX: &str = "mkdir -p /tmp/nginx/pages && cd /tmp/nginx && \
    head -c PAGE /dev/urandom >pages/page && truncate -s 1G pages/long && \
    echo 'user root; pid /tmp/nginx/pid; error_log stderr; worker_processes 1;
        events { worker_connections 256; }
        http { access_log off; client_body_temp_path /tmp/nginx/1; proxy_temp_path /tmp/nginx/2;
          fastcgi_temp_path /tmp/nginx/3; uwsgi_temp_path /tmp/nginx/4; scgi_temp_path /tmp/nginx/5;
          server { listen 127.0.0.1:8090; root /tmp/nginx/pages; } }' >conf && \
    nginx -c /tmp/nginx/conf >/dev/null 2>&1";

const REDIS: &str = "redis-server --bind 127.0.0.1 --port 6390 --save '' --appendonly no --dir /tmp \
    --daemonize yes >/dev/null && \
    until redis-cli -p 6390 ping >/dev/null; do sleep 0.05; done";

pub(crate) fn services() -> Vec<Service> {
    use Begun::{Here, Says, There};
    use Shows::{Page, Rate, Text};
    let client = |line, shows| Client { line, shows };
    let cut = |line, begun, error| Some(Cut { line, begun, error });
    const REQUESTS: &str = "requests per second";
    vec![
        Service {
            behind: None,
            server: "resp_server RDMSG --tcp TCP",
            near: None,
            clients: vec![
                client("redis-cli -h IP -p PORT SET name value", Text("OK")),
                client("resp_client RDMSG GET name", Text("\"value\"")),
                client("resp_client RDMSG RPUSH list a b", Text("(integer) 2")),
                client("redis-cli -h IP -p PORT LRANGE list 0 -1", Text("a\nb")),
                client(
                    "redis-benchmark -h IP -p PORT -q -c 10 -n N -t set,get,incr,ping",
                    Rate(REQUESTS),
                ),
                client("resp_client --tcp TCP -c 10 -n N", Rate(REQUESTS)),
                client("resp_client RDMSG -c 10 -n N", Rate(REQUESTS)),
                client(
                    "redis-benchmark -h IP -p PORT -q -c 10 -P 16 -n N -t set",
                    Rate(REQUESTS),
                ),
                client("resp_client RDMSG -c 10 -P 16 -n N", Rate(REQUESTS)),
            ],
            cut: cut(
                "resp_client RDMSG -n 1000000000 -c 1 INCR count",
                Says("connected"),
                SILENT,
            ),
        },
        Service {
            behind: None,
            server: "http_server RDMSG --tcp TCP",
            near: None,
            clients: vec![
                client("curl -sS http://TCP/", Text("rdmsg")),
                client("curl -sS -o /tmp/page http://TCP/bytes/PAGE", Page),
                client("http_client RDMSG /bytes/PAGE -o /tmp/page", Page),
                client("http_client RDMSG /echo --post PAGE -o /tmp/page", Page),
                client(
                    "http_client RDMSG /echo --post PAGE -o /tmp/page --http2",
                    Page,
                ),
                client("http_client --tcp TCP / -c 10 -n N", Rate(REQUESTS)),
                client("http_client RDMSG / -c 10 -n N", Rate(REQUESTS)),
                client("http_client RDMSG / -c 10 -n N --http2", Rate(REQUESTS)),
            ],
            cut: cut(
                "http_client RDMSG / -n 1000000000 -c 10",
                Says("connected"),
                SILENT,
            ),
        },
        Service {
            behind: None,
            server: "http_server RDMSG --tcp TCP --self-signed /tmp/services.pem",
            near: None,
            clients: vec![
                client(
                    "curl -sS --cacert /tmp/services.pem --connect-to ::IP:PORT https://rdmsg.test",
                    Text("rdmsg"),
                ),
                client(
                    "http_client RDMSG /bytes/PAGE -o /tmp/page --trust /tmp/services.pem --http2",
                    Page,
                ),
            ],
            cut: None,
        },
        Service {
            behind: None,
            server: "grpc serve RDMSG --tcp TCP",
            near: None,
            clients: vec![
                client("grpc once RDMSG hello", Text("hello")),
                client("grpc count RDMSG 3", Text("0\n1\n2")),
                client("grpc chat RDMSG a b c", Text("a\nb\nc")),
                client("grpc once --tcp TCP hello -c 10 -n N", Rate(REQUESTS)),
                client("grpc once RDMSG hello -c 10 -n N", Rate(REQUESTS)),
            ],
            cut: cut(
                "grpc once RDMSG hello -n 1000000000",
                Says("connected"),
                SILENT,
            ),
        },
        Service {
            behind: None,
            server: "axum_server RDMSG --tcp TCP",
            near: None,
            clients: vec![
                client("curl -sS http://TCP/", Text("hello, ")),
                client("http_get http://RDMSG/", Text("hello, ")),
                client("http_get http://TCP/ --tcp -c 10 -n N", Rate(REQUESTS)),
                client("http_get http://RDMSG/ -c 10 -n N", Rate(REQUESTS)),
                client("http_get http://RDMSG/ -c 10 -n N --http2", Rate(REQUESTS)),
            ],
            cut: None,
        },
        Service {
            behind: None,
            server: "rpc serve RDMSG",
            near: None,
            clients: vec![
                client("rpc set RDMSG name value", Text("set, was None")),
                client("rpc get RDMSG name", Text("value")),
                client("rpc get RDMSG name -n N", Rate(REQUESTS)),
            ],
            cut: None,
        },
        Service {
            behind: None,
            server: "broker serve RDMSG",
            near: None,
            clients: vec![
                client("broker pub RDMSG news -n N", Rate("messages per second")),
                client("broker ask RDMSG", Text("waiting-bytes 0")),
            ],
            cut: cut("broker sub RDMSG news", Says("subscribed"), SILENT),
        },
        Service {
            behind: None,
            server: "file_copy serve /tmp RDMSG",
            near: None,
            clients: vec![
                client("file_copy put /tmp/file RDMSG", Rate("MB/s")),
                client("file_copy get /tmp/back RDMSG --name file", Rate("MB/s")),
                client("sha256sum --check /tmp/sums", Text("/tmp/back: OK")),
            ],
            cut: cut(
                "file_copy put /tmp/file RDMSG --name cut",
                There("test -s /tmp/cut.part"),
                SILENT,
            ),
        },
        Service {
            behind: Some([REDIS, "redis-cli -p 6390 shutdown"]),
            server: "rdmsg bridge --listen rdma://RDMSG --to tcp://127.0.0.1:6390",
            near: Some("rdmsg bridge --listen tcp://NEAR --to rdma://RDMSG"),
            clients: vec![
                client("redis-cli -u redis://NEAR SET name value", Text("OK")),
                client("redis-cli -u redis://NEAR GET name", Text("value")),
                client(
                    "redis-benchmark -p 6391 -q -c 10 -n N -t set,get,incr,ping",
                    Rate(REQUESTS),
                ),
                client(
                    "redis-benchmark -p 6391 -q -c 10 -P 16 -n N -t set",
                    Rate(REQUESTS),
                ),
            ],
            cut: cut(
                "redis-benchmark -p 6391 -q -c 5 -n 1000000000 -t lpush",
                There("redis-cli -p 6390 info commandstats | grep -q cmdstat_lpush"),
                RESET,
            ),
        },
        Service {
            behind: Some([NGINX, "nginx -c /tmp/nginx/conf -s quit"]),
            server: "rdmsg bridge --listen rdma://RDMSG --to tcp://127.0.0.1:8090",
            near: Some("rdmsg bridge --listen tcp://NEAR --to rdma://RDMSG"),
            clients: vec![
                client("curl -sS -o /tmp/page http://NEAR/page", Page),
                client(
                    "curl -sS -r 0-9 -w %{http_code} -o /tmp/part http://NEAR/page",
                    Text("206"),
                ),
            ],
            // It reads without a limit, because a slow reader gets all that its socket and the
            // bridge's still hold before it learns of the reset.
            cut: cut(
                "curl -sS -o /tmp/long http://NEAR/long",
                Here("test -s /tmp/long"),
                RESET,
            ),
        },
    ]
}
