//! Ports that lead elsewhere: servers of other protocols, and forwarders between networks.

#[path = "support/running.rs"]
mod running;

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use running::Running;

const LIMIT: Duration = Duration::from_secs(60);

/// Starts a server, if its program is there, and waits until it takes connections.
fn server(command: &mut Command, port: u16) -> Option<Running> {
    let started = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let Ok(child) = started else {
        eprintln!("skipped: {} is not there", command.get_program().display());
        return None;
    };
    let mut child = Running(child);
    let start = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(
            start.elapsed() < LIMIT && child.0.try_wait().is_ok_and(|end| end.is_none()),
            "it does not start"
        );
        thread::sleep(Duration::from_millis(20));
    }
    Some(child)
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("free").port()
}

fn http(_: &Path, port: u16) -> Option<Running> {
    server(
        Command::new("python3").args(["-m", "http.server", "--bind", "127.0.0.1", &port.to_string()]),
        port,
    )
}

fn ssh(folder: &Path, port: u16) -> Option<Running> {
    let key = folder.join("key");
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key).status();
    if !made.is_ok_and(|made| made.success()) {
        eprintln!("skipped: ssh-keygen is not there");
        return None;
    }
    // As root it needs a folder that a system service would have made.
    let _ = fs::create_dir_all("/run/sshd");
    let mut sshd = Command::new("/usr/sbin/sshd");
    sshd.args([
        "-D",
        "-f",
        "/dev/null",
        "-p",
        &port.to_string(),
        "-o",
        "ListenAddress=127.0.0.1",
        "-o",
        "PidFile=none",
    ]);
    server(sshd.arg("-h").arg(key), port)
}

/// A server of TLS, which closes what is no TLS.
fn closing(_: &Path, port: u16) -> Option<Running> {
    let program = "import socket\ns=socket.create_server(('127.0.0.1',PORT))\nwhile 1:\n c=s.accept()[0]\n c.recv(9999)\n c.close()";
    server(Command::new("python3").args(["-c", &program.replace("PORT", &port.to_string())]), port)
}

/// What the command says of a server of another kind at a peer's port.
fn told(start: fn(&Path, u16) -> Option<Running>) {
    let folder = tempfile::tempdir().expect("a folder");
    let port = free_port();
    let Some(_server) = start(folder.path(), port) else { return };
    let isthmus = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_isthmus"));
        command.current_dir(folder.path()).env("FI_ISTHMUS_INTERFACE", "127.0.0.1").args(words);
        command.env("FI_ISTHMUS_PEER_TIMEOUT", "3s").env_remove("ISTHMUS_CONFIG").env_remove("ISTHMUS_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let place = format!("127.0.0.1:{port}");
    let commands = [
        isthmus(&["cp", "--plain", &format!("{place}:data/a"), "copy"]),
        isthmus(&["doctor", "--peer", &place]),
    ];
    for (command, status) in commands.into_iter().zip([4, 1]) {
        let Output { status: ended, stdout, stderr } = command.wait_with_output().expect("it ends");
        let said = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
        assert_eq!(ended.code(), Some(status), "{said}");
        assert!(said.contains("is it the right port") && said.contains(&place), "{said}");
        assert!(!said.contains("nobody listens"), "{said}");
    }
}

#[test]
fn a_web_server_at_the_port_is_told_as_something_else() {
    told(http);
}

#[test]
fn an_ssh_server_at_the_port_is_told_as_something_else() {
    told(ssh);
}

#[test]
fn a_server_that_closes_what_it_does_not_understand_is_told_as_something_else() {
    told(closing);
}

/// Two networks, each with an interface to the other: 10.99.9.1 is here, and 10.99.9.2 there.
const NETWORKS: &str = r#"
set -e
ip link set lo up
unshare --net sleep 110 & far=$!
# One of them may have ended, which must not become this shell's status.
trap 'kill $far $serve 2>/dev/null || true' EXIT
until [ "$(readlink /proc/$far/ns/net)" != "$(readlink /proc/$$/ns/net)" ]; do sleep 0.02; done
there() { nsenter --target $far --net "$@"; }
isthmus=$1
serve_there() {
    echo ready
    nsenter --target $far --net "$isthmus" serve --config serve.toml 2>serve.log & serve=$!
    until grep -q 'serving at' serve.log; do sleep 0.05; done
}
ip link add name near type veth peer name far netns $far
ip addr add 10.99.9.1/24 dev near && ip link set near up
there ip link set lo up
there ip addr add 10.99.9.2/24 dev far && there ip link set far up
"#;

/// Runs a script in two networks of its own, beside a service with the file `content` in `folder`. Returns whether it
/// succeeded, and its output; `None` where this host allows no such networks.
fn in_two_networks(
    script: &str,
    limit_s: u32,
    folder: &Path,
    listen: &str,
    content: &[u8],
) -> Option<(bool, String)> {
    let config = format!("listen = \"{listen}\"\nplain = true\n[export.data]\npath = \"export\"\n");
    fs::write(folder.join("serve.toml"), config).expect("written");
    fs::create_dir(folder.join("export")).expect("made");
    fs::write(folder.join("export/a"), content).expect("written");
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--net", "timeout", &limit_s.to_string(), "sh", "-c"]);
    command.arg(format!("{NETWORKS}{script}")).args(["sh", env!("CARGO_BIN_EXE_isthmus")]);
    command.current_dir(folder).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
    for name in ["FI_ISTHMUS_INTERFACE", "ISTHMUS_CONFIG", "ISTHMUS_SITES", "ISTHMUS_LOG"] {
        command.env_remove(name);
    }
    let done = command.output().expect("unshare(1) is there");
    let said = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    if !said.contains("ready") {
        eprintln!("skipped: no network namespaces, or no nft(8): {said}");
        return None;
    }
    Some((done.status.success(), said))
}

/// Runs a script as [`in_two_networks`] does. It has to succeed, and to leave a whole copy of `content`, named `copy`.
fn copies_whole(script: &str, limit_s: u32, listen: &str, content: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    let Some((succeeded, said)) = in_two_networks(script, limit_s, folder.path(), listen, content) else {
        return;
    };
    assert!(succeeded, "{said}");
    assert!(fs::read(folder.path().join("copy")).is_ok_and(|copy| copy == content), "{said}");
}

/// Bytes of which each piece is another.
fn varied(len: u32) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Port 7000 of the far network leads to a service at an address that the near one has no route to. After a
/// second the far host resets what goes there, and refuses it for two seconds.
const FORWARDED: &str = r#"
there ip addr add 10.98.8.2/32 dev lo
there nft add table ip forward
there nft add chain ip forward pre '{ type nat hook prerouting priority dstnat; }'
there nft add rule ip forward pre tcp dport 7000 dnat to 10.98.8.2:7001
serve_there
"$1" cp --plain --limit-rate 6MB/s 10.99.9.2:7000:data/a copy & cp=$!
sleep 1
there nft add table inet gone
there nft add chain inet gone in '{ type filter hook input priority 0; }'
there nft add rule inet gone in tcp dport 7001 reject with tcp reset
sleep 2
there nft delete table inet gone
wait $cp
"#;

#[test]
fn a_copy_through_a_forwarded_port_goes_on_after_the_forwarder_was_gone() {
    copies_whole(FORWARDED, 50, "10.98.8.2:7001", &varied(12_000_000));
}

/// Port 7000 of the far network leads by UDP only to a service at an address that the near one has no route to.
const UDP_ONLY: &str = r#"
there ip addr add 10.98.8.2/32 dev lo
there nft add table ip forward
there nft add chain ip forward pre '{ type nat hook prerouting priority dstnat; }'
there nft add rule ip forward pre udp dport 7000 dnat to 10.98.8.2:7001
[ -z "$SILENT" ] || there nft add table ip wall
[ -z "$SILENT" ] || there nft add chain ip wall in '{ type filter hook input priority 0; }'
[ -z "$SILENT" ] || there nft add rule ip wall in tcp dport 7000 drop
serve_there
FI_ISTHMUS_PEER_TIMEOUT=5s "$1" cp --plain 10.99.9.2:7000:data/a copy
"#;

/// The path is so short that TCP would do better. Nobody listens at the port by TCP, or a firewall drops what comes
/// there.
#[test]
fn a_copy_goes_through_a_port_that_is_forwarded_for_udp_only() {
    for silent in ["SILENT=\n", "SILENT=yes\n"] {
        println!("{silent}");
        copies_whole(&format!("{silent}{UDP_ONLY}"), 40, "10.98.8.2:7001", &vec![7; 4_000_000]);
    }
}

/// The near network has two local ports for all sockets, and the far one a service. Several copies follow each
/// other there, and then one without UDP. The far host has a firewall that lets no UDP in from then on.
const TWO_PORTS: &str = r#"
echo 40000 40001 > /proc/sys/net/ipv4/ip_local_port_range
there nft add table inet wall
serve_there
for number in 1 2 3; do
    timeout 20 "$1" cp --plain --all --limit-rate 2MB/s 10.99.9.2:7001:data/a copy$number
done
there nft add chain inet wall in '{ type filter hook input priority 0; }'
there nft add rule inet wall in udp dport 7001 drop
echo "without UDP"
status=0
FI_ISTHMUS_PEER_TIMEOUT=3s timeout 30 "$1" cp --plain --all --limit-rate 2MB/s 10.99.9.2:7001:data/a copy4 || status=$?
echo "status $status"
"#;

/// A connection that has ended keeps its port for a minute, so the first copy takes the last one.
#[test]
fn copies_go_on_where_two_local_ports_have_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let content = vec![7; 4_000_000];
    let Some((_, said)) = in_two_networks(TWO_PORTS, 100, folder.path(), "10.99.9.2:7001", &content) else {
        return;
    };
    for name in ["copy1", "copy2", "copy3"] {
        assert!(fs::read(at(name)).is_ok_and(|copy| copy == content), "{name}: {said}");
    }
    // Without UDP either a port is free by then, or the error names what is short.
    let (_, rest) = said.split_once("without UDP").expect("the copies ended");
    let is_copied = fs::read(at("copy4")).is_ok_and(|copy| copy == content);
    assert!(is_copied || rest.contains("ip_local_port_range"), "{said}");
}

/// Port 7000 of the far network leads to the service for one TCP connection, the first. Others are accepted, and
/// nobody reads them. By UDP nobody listens there.
const SINGLE: &str = r#"
serve_there
nsenter --target $far --net python3 - >forwarder.log 2>&1 <<'END' &
import socket, threading
listener = socket.create_server(("10.99.9.2", 7000))
print("listening", flush=True)
near = listener.accept()[0]
far = socket.create_connection(("10.99.9.2", 7001))
def pass_on(source, target):
    while True:
        data = source.recv(65536)
        if not data:
            break
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)
threading.Thread(target=pass_on, args=(near, far), daemon=True).start()
pass_on(far, near)
END
serve="$serve $!"
until grep -q listening forwarder.log; do sleep 0.05; done
"$1" cp --plain 10.99.9.2:7000:data/a copy
"#;

/// The first connection is a probe, because no answer comes by UDP.
#[test]
fn a_copy_goes_through_a_forwarder_that_takes_a_single_connection() {
    copies_whole(SINGLE, 30, "10.99.9.2:7001", &vec![7; 4_000_000]);
}

/// Port 7000 of the far network leads to the service by TCP. By UDP it sends back what comes.
const ECHO: &str = r#"
there nft add table ip forward
there nft add chain ip forward pre '{ type nat hook prerouting priority dstnat; }'
there nft add rule ip forward pre tcp dport 7000 dnat to 10.99.9.2:7001
serve_there
nsenter --target $far --net python3 - >echo.log 2>&1 <<'END' &
import socket
echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
echo.bind(("10.99.9.2", 7000))
print("listening", flush=True)
while True:
    data, sender = echo.recvfrom(65536)
    echo.sendto(data, sender)
END
serve="$serve $!"
until grep -q listening echo.log; do sleep 0.05; done
for number in 1 2 3; do "$1" cp --plain 10.99.9.2:7000:data/a copy$number; done
"#;

#[test]
fn an_echo_at_the_port_by_udp_is_not_taken_for_the_peer() {
    let folder = tempfile::tempdir().expect("a folder");
    let content = vec![7; 4_000_000];
    let Some((succeeded, said)) = in_two_networks(ECHO, 40, folder.path(), "10.99.9.2:7001", &content) else {
        return;
    };
    assert!(succeeded, "{said}");
    for number in 1..=3 {
        let copy = folder.path().join(format!("copy{number}"));
        assert!(fs::read(copy).is_ok_and(|copy| copy == content), "{number}: {said}");
    }
}

/// The far host ends each TCP connection that has carried 1 MB, and tells only the service: whatever comes later is
/// dropped.
const RESETS: &str = r#"
there sh -c 'echo 1 > /proc/sys/net/netfilter/nf_conntrack_acct'
there nft add table inet resets
there nft add chain inet resets out '{ type filter hook output priority 0; }'
there nft add rule inet resets out meta l4proto tcp ct bytes gt 1000000 reject with tcp reset
serve_there
FI_ISTHMUS_TRANSPORT=tcp "$1" cp --plain 10.99.9.2:7001:data/a copy
"#;

/// What arrived by the connections that ended counts, and acknowledgements do not go where nobody hears them.
#[test]
fn a_copy_goes_on_where_each_connection_is_reset_after_a_megabyte_at_one_end() {
    copies_whole(RESETS, 60, "10.99.9.2:7001", &varied(3_000_000));
}
