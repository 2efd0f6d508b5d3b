//! The Python binding: its wheel, what is in it, its own tests, and what the examples do.

#[path = "../../isthmus-io/tests/support/hung.rs"]
mod hung;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A bound for a program that hangs. Seconds.
const LONG_ENOUGH: &str = "120";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// An environment of its own, with the wheel and what it depends on.
struct Venv(tempfile::TempDir);

impl Venv {
    /// `None` where what builds the wheel is not there.
    fn make() -> Option<Self> {
        if !root().join("build/python/bin/python").is_file() {
            eprintln!("skipped: build/python is missing; run tools/bootstrap.sh python");
            return None;
        }
        // cffi, for the binding.
        let others = root().join("build/wheels");
        assert!(others.is_dir(), "build/wheels is missing; run tools/bootstrap.sh python");
        let venv = Self(tempfile::tempdir().expect("a folder"));
        let folder = venv.0.path();
        good(Command::new(root().join("tools/binding.sh")).arg(folder.join("wheel")));
        let mut wheels = std::fs::read_dir(folder.join("wheel")).expect("made");
        let wheel = wheels.next().expect("a wheel").expect("readable").path();
        let name = wheel.file_name().and_then(|name| name.to_str()).expect("text").to_owned();
        assert!(
            name.starts_with(concat!("isthmus-", env!("CARGO_PKG_VERSION"), "-py3-none-linux_")),
            "{name}: for any Python, and this machine"
        );
        good(Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(folder.join("venv")));
        let site = "import sysconfig; print(sysconfig.get_path('purelib'))";
        let site = good(Command::new(venv.python()).args(["-c", site]));
        let site = String::from_utf8_lossy(&site.stdout).trim().to_owned();
        let mut pip = Command::new(root().join("build/python/bin/python"));
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-index",
            "--no-compile",
        ]);
        good(pip.args(["--target", &site]).arg("--find-links").arg(others).arg(wheel));
        Some(venv)
    }

    fn python(&self) -> PathBuf {
        self.0.path().join("venv/bin/python")
    }

    fn command(&self, words: &[&str]) -> Command {
        let config = self.0.path().join("isthmus.toml");
        std::fs::write(&config, "[device]\ninterface = \"127.0.0.1\"\n").expect("written");
        let mut command = Command::new("timeout");
        command.args(["--signal=KILL", LONG_ENOUGH]).arg(self.python()).args(words);
        command.env("ISTHMUS_CONFIG", config).env("PYTHONDONTWRITEBYTECODE", "1");
        command.env_remove("PYTHONPATH").env_remove("ISTHMUS_LIBRARY").current_dir(root());
        command
    }

    /// Runs an example's two sides: the one that waits, and with its address the other.
    fn example(&self, name: &str, level: Option<&str>) -> String {
        let script = format!("examples/python/{name}.py");
        let mut waiting = self.command(&[&script]).stdout(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(waiting.stdout.take().expect("a pipe")).lines();
        let uri = lines.next().expect("an address").expect("text");
        assert!(uri.starts_with("isthmus://"), "{uri}");
        let mut words = vec![script.as_str()];
        words.extend(level);
        words.push(&uri);
        let other = good(&mut self.command(&words));
        let waiting = hung::wait(&mut waiting, format_args!("{name}: the waiting side"));
        assert!(waiting.success(), "{name}: the waiting side");
        String::from_utf8_lossy(&other.stdout).into_owned()
    }
}

fn good(command: &mut Command) -> Output {
    let output = hung::output(command);
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}: {said}{complained}", output.status);
    output
}

#[test]
fn the_wheel_holds_all_that_python_programs_need() {
    let Some(venv) = Venv::make() else { return };
    let tests = good(&mut venv.command(&["-m", "unittest", "discover", "--start-directory", "python/tests"]));
    let said = String::from_utf8_lossy(&tests.stderr);
    assert!(said.contains("\nOK\n") && !said.contains("Ran 0 tests"), "{said}");
    for level in ["uu", "ro"] {
        assert!(venv.example("pingpong", Some(level)).contains("1000 rounds"));
    }
    assert!(venv.example("stream", None).contains("all of it is right"));
    assert!(venv.example("tasks", None).contains("200 answers came"));
    assert!(venv.example("coupled", None).contains("bit by bit; 0.0050 degrees"));
}
