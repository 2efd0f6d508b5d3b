//! The shell around [`Agent`]: sockets, processes, signals and the clock.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use isthmus_substrate::log::no_thread;
use isthmus_substrate::meeting::{Announced, At, Meeting, NotFound};
use isthmus_substrate::{
    ConnectOptions, Connection, Endpoint, EndpointOptions, Error, Event, Failure, Level, SendOptions,
    Substrate,
};
use rustix::process::Signal;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::agent::{Action, Agent, Link, Me};
use crate::launcher::ProcessNumber;
use crate::letter::{Hello, LETTER_MAX, OnLoss, Start, decode, encode};
use crate::pmi::Session;
use crate::pmix::{Message, Server};
use crate::ranks::{self, Gate, Lines, Print, Program, RankProcess};
use crate::reach::Reach;

/// Most inputs that wait for the main thread. Threads with further ones block.
const INPUTS_MAX: usize = 1024;
/// How long a connection request may take before this process looks for the other one again.
const CALL: Duration = Duration::from_secs(15);
/// How long ranks may take to end after SIGTERM, before they get SIGKILL. A failed job is to end within 5 s, detection
/// included.
const MERCY: Duration = Duration::from_secs(1);
/// How long ranks may take to vanish after SIGKILL. A rank may hang in the kernel.
const BURIAL: Duration = Duration::from_secs(1);
/// Code with which a connection request is refused. The payload has the reason as text.
const NO: u32 = 1;

/// What `isthmus run` is to do.
#[derive(Debug)]
pub struct Options {
    /// Name of the job, the same at all parts.
    pub job: String,
    /// Which part this is, from 1.
    pub part: u32,
    /// How many parts there are.
    pub parts: u32,
    /// Which process of the part this is.
    pub process: ProcessNumber,
    /// How many ranks this process starts.
    pub ranks: u32,
    /// Where the processes find each other. `None` for a single process, and for part 1 if it prints its address.
    pub at: Option<At>,
    /// File with the secret for [`At::Host`].
    pub secret: Option<PathBuf>,
    /// How long to wait for the other processes.
    pub wait: Duration,
    /// What the job does when a rank or a process is lost. The same at all parts.
    pub on_loss: OnLoss,
    /// Begin each line of output with its rank.
    pub label: bool,
    /// Print the output of all ranks at the first process of part 1.
    pub gather: bool,
    /// Prints output that is labelled or gathered.
    pub print: Print,
    /// Folder for the output of each rank, which is created.
    pub output: Option<PathBuf>,
    /// Command line of the PMIx server, for programs that speak PMIx. The world follows it (crate `isthmus-pmix`).
    pub pmix: Option<Vec<OsString>>,
    /// The program and its arguments.
    pub program: Vec<OsString>,
    /// Command line of a process that calls [`crate::become_rank`]; `program` follows it.
    pub starter: Vec<OsString>,
    /// Environment variables of the ranks, beside those of this process.
    pub variables: Vec<(String, String)>,
}

/// Why `run` failed, apart from failures of the job.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// An option or setting is wrong.
    #[error("{0}")]
    Usage(String),
    /// The system refused something.
    #[error("{0}")]
    System(String),
}

/// An event for the main thread.
#[derive(Debug)]
pub(crate) enum Input {
    Event(Event),
    Found(Result<String, NotFound>),
    Pmi(u32, Vec<u8>),
    Ended(u32),
    Signal(i32),
    /// Output for [`Options::gather`].
    Output(Lines),
    /// The PMIx server says something.
    Pmix(Message),
    /// A rank tells of an endpoint.
    Reach(Reach),
}

/// Starts the ranks of one process of a part. Returns the exit status when the job is over. `tell` receives lines for
/// the user.
///
/// # Errors
/// [`RunError`] if an option is wrong or the system refuses a resource.
pub fn run(options: &Options, tell: &mut dyn FnMut(&str)) -> Result<u8, RunError> {
    let usage = RunError::Usage;
    let system = |error: &dyn std::fmt::Display| RunError::System(error.to_string());
    let host = rustix::system::uname().nodename().to_string_lossy().chars().take(64).collect::<String>();
    // Containers share their host's boot id, and hosts may share a name. Ranks share memory only if both agree.
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let alone = options.parts == 1 && options.process.count == 1;
    let meeting = meeting(options, alone).map_err(usage)?;
    let me = Me {
        job: options.job.clone(),
        part: options.part,
        parts: options.parts,
        index: options.process.index,
        count: options.process.count,
        ranks: options.ranks,
        node: format!("{host}/{}", boot.trim()),
        host,
        uri: String::new(),
        at: meeting.as_ref().map_or_else(String::new, |meeting| meeting.at().to_string()),
        wait: options.wait,
        on_loss: options.on_loss,
        nonce: getrandom::u64().map_err(|error| system(&error))?,
    };
    Agent::check(&me).map_err(usage)?;
    let endpoint = if alone { None } else { Some(Arc::new(open()?)) };
    let me = Me { uri: endpoint.as_ref().map_or_else(String::new, |endpoint| endpoint.uri()), ..me };
    let (inputs, arriving) = sync_channel(INPUTS_MAX);
    if let Some(endpoint) = &endpoint {
        pass_on_events(endpoint.clone(), inputs.clone())?;
    }
    pass_on_signals(inputs.clone())?;
    let mut shell = Shell {
        options,
        tell,
        meeting,
        endpoint,
        inputs,
        links: HashMap::new(),
        calls: HashMap::new(),
        contexts: 0,
        ranks: Vec::new(),
        gate: Arc::default(),
        pmix: None,
        sessions: Vec::new(),
        announced: Announced::default(),
        began: Instant::now(),
        kill_at: None,
        finish: None,
    };
    let status = shell.serve(Agent::new(me), &arriving);
    shell.close();
    status
}

/// Where the parts find each other; `None` if this process need not find any, or prints its own address. `alone`: it
/// is the only process of the job.
fn meeting(options: &Options, alone: bool) -> Result<Option<Meeting>, String> {
    let at = match &options.at {
        // It would wait for parts that wait for it.
        Some(At::Uri(_)) if options.part == 1 && options.process.index == 0 => {
            let why = "the first process of part 1 is the one that the others find: leave out --at, and it prints its own \
                       isthmus:// address";
            return Err(why.to_owned());
        }
        Some(at) => at.clone(),
        None if alone || (options.part == 1 && options.process.count == 1) => return Ok(None),
        None => {
            return Err(
                "--at is missing: where do the parts find each other? See isthmus run --help".to_owned()
            );
        }
    };
    let name = format!("isthmus-run.{}", options.job);
    Meeting::new(at, &options.job, name, options.secret.as_deref()).map(Some)
}

/// Starts the thread that passes the endpoint's events to the main thread.
fn pass_on_events(endpoint: Arc<Endpoint>, inputs: SyncSender<Input>) -> Result<(), RunError> {
    spawn("isthmus-events", move || {
        while let Ok(event) = endpoint.next_event(None) {
            if event.is_some_and(|event| inputs.send(Input::Event(event)).is_err()) {
                return;
            }
        }
    })
}

/// Starts the thread that passes SIGTERM and SIGINT to the main thread.
fn pass_on_signals(inputs: SyncSender<Input>) -> Result<(), RunError> {
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(|error| RunError::System(error.to_string()))?;
    spawn("isthmus-signals", move || {
        for number in signals.forever() {
            if inputs.send(Input::Signal(number)).is_err() {
                return;
            }
        }
    })
}

/// The endpoint over which processes of `isthmus run` talk.
fn open() -> Result<Endpoint, RunError> {
    let wrong = |error: Error| match error {
        Error::Configuration(_) | Error::Device(_) => RunError::Usage(error.to_string()),
        _ => RunError::System(error.to_string()),
    };
    let substrate = Substrate::init().map_err(wrong)?;
    let device = substrate.default_device().map_err(wrong)?.confidential();
    let options = EndpointOptions {
        message_max: LETTER_MAX,
        recv_buffers: 64,
        send_buffers: 1 << 16,
        ..Default::default()
    };
    Endpoint::create(&device, &options).map_err(wrong)
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), RunError> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(body);
    started.map(|_| ()).map_err(|error| RunError::System(no_thread(error).to_string()))
}

/// A connection request in progress.
#[derive(Debug)]
enum Call {
    /// To a process of this part.
    Out(u32),
    /// From another process, and admitted.
    In(Hello),
}

struct Shell<'a> {
    options: &'a Options,
    tell: &'a mut dyn FnMut(&str),
    meeting: Option<Meeting>,
    endpoint: Option<Arc<Endpoint>>,
    inputs: SyncSender<Input>,
    links: HashMap<Link, Connection>,
    calls: HashMap<u64, Call>,
    /// The context of the latest request.
    contexts: u64,
    ranks: Vec<RankProcess>,
    gate: Arc<Gate>,
    pmix: Option<Server>,
    sessions: Vec<Session>,
    announced: Announced,
    began: Instant,
    /// When to kill the remaining ranks.
    kill_at: Option<Instant>,
    /// The exit status, when the job is over.
    finish: Option<u8>,
}

impl Shell<'_> {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn serve(&mut self, mut agent: Agent, arriving: &Receiver<Input>) -> Result<u8, RunError> {
        let mut buried = None;
        loop {
            self.act(&mut agent)?;
            if let Some(status) = self.finish {
                let over = *buried.get_or_insert_with(|| {
                    self.kill_at.get_or_insert_with(|| Instant::now() + MERCY);
                    Instant::now() + MERCY + BURIAL
                });
                // After a failure, others below may still send their ranks' last words.
                let all_said = status == 0
                    || !self.options.gather
                    || !self.links.keys().any(|link| agent.is_below(*link));
                let all_over = self.ranks.iter().all(RankProcess::has_ended) && all_said;
                if all_over || Instant::now() >= over {
                    let until = Instant::now() + BURIAL;
                    self.ranks.iter().for_each(|rank| rank.drain(until));
                    return Ok(status);
                }
            }
            let due = agent.due().map(|due| due.saturating_sub(self.now()));
            let kill = self.kill_at.map(|at| at.saturating_duration_since(Instant::now()));
            let over = buried.map(|at: Instant| at.saturating_duration_since(Instant::now()));
            let wait = [due, kill, over].into_iter().flatten().min().unwrap_or(Duration::from_secs(3600));
            match arriving.recv_timeout(wait) {
                Ok(input) => self.take(&mut agent, input),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(RunError::System("a thread ended".to_owned()));
                }
            }
            agent.tick(self.now());
            if self.kill_at.is_some_and(|at| Instant::now() >= at) {
                self.ranks.iter().for_each(|rank| rank.signal(Signal::KILL));
                self.kill_at = None;
            }
        }
    }

    fn take(&mut self, agent: &mut Agent, input: Input) {
        let now = self.now();
        match input {
            Input::Event(event) => self.take_event(agent, event),
            Input::Found(Ok(uri)) => agent.found(uri),
            Input::Found(Err(NotFound::Later(why))) => agent.not_found(why),
            Input::Found(Err(NotFound::Never(why))) => agent.refused(now, why),
            Input::Pmi(rank, bytes) => {
                let session = &mut self.sessions[rank as usize];
                if let Err(error) = session.feed(&bytes) {
                    return agent.nonsense(now, rank, &error.to_string());
                }
                loop {
                    match session.next_request() {
                        Ok(Some(asked)) => agent.pmi(now, rank, asked),
                        Ok(None) => return,
                        Err(error) => return agent.nonsense(now, rank, &error.to_string()),
                    }
                }
            }
            Input::Ended(rank) => {
                let how = self.ranks[rank as usize].reap();
                agent.rank_ended(now, rank, how);
            }
            Input::Signal(number) => {
                // A second signal means that the user does not want to wait.
                if let Some(at) = &mut self.kill_at {
                    *at = Instant::now();
                }
                agent.signalled(now, number);
            }
            Input::Output(lines) => agent.output(None, lines),
            Input::Pmix(Message::Fence(bytes)) => agent.pmix_fence(now, &bytes),
            Input::Pmix(Message::Connected(rank)) => agent.pmix_uses(now, rank, true),
            Input::Pmix(Message::Finalized(rank)) => agent.pmix_uses(now, rank, false),
            Input::Pmix(Message::Abort { rank, code, message }) if rank < self.options.ranks => {
                agent.pmix_aborts(now, rank, code, &message);
            }
            Input::Pmix(Message::Abort { .. }) => {}
            Input::Pmix(Message::Ended(why)) => agent.pmix_ended(now, &why),
            Input::Reach(Reach::Opened { rank, endpoint }) => agent.endpoint_opened(rank, endpoint),
            Input::Reach(Reach::Unreachable { rank, endpoint, why }) => {
                agent.peer_unreachable(now, rank, endpoint, why);
            }
        }
    }

    fn take_event(&mut self, agent: &mut Agent, event: Event) {
        let now = self.now();
        match event {
            Event::Requested(request) => {
                let Some(endpoint) = &self.endpoint else { return };
                let verdict = match decode::<Hello>(request.payload()) {
                    Some(hello) => agent.admits(&hello).map(|()| hello),
                    None => {
                        Err("the two sides have different releases of Isthmus; install the same".to_owned())
                    }
                };
                // Ignore errors: a caller that has gone requests again.
                match verdict {
                    Ok(hello) => {
                        self.contexts += 1;
                        self.calls.insert(self.contexts, Call::In(hello));
                        if endpoint.accept(request, self.contexts).is_err() {
                            self.calls.remove(&self.contexts);
                        }
                    }
                    Err(why) => drop(endpoint.reject(request, NO, why.as_bytes())),
                }
            }
            Event::Accepted { connection, context } => {
                if let Some(Call::In(hello)) = self.calls.remove(&context) {
                    self.links.insert(connection.to_bits(), connection);
                    agent.accepted(connection.to_bits(), hello);
                }
            }
            Event::AcceptFailed { context, .. } => drop(self.calls.remove(&context)),
            Event::Connected { connection, context } => {
                if let Some(Call::Out(part)) = self.calls.remove(&context) {
                    self.links.insert(connection.to_bits(), connection);
                    agent.connected(connection.to_bits(), part);
                }
            }
            Event::ConnectFailed { context, why, payload } => {
                let is_known = self.calls.remove(&context).is_some();
                match why {
                    _ if !is_known => {}
                    Failure::Rejected(NO) => {
                        agent.refused(now, String::from_utf8_lossy(&payload).into_owned());
                    }
                    Failure::Version => agent.refused(now, why.to_string()),
                    why => agent.not_found(why.to_string()),
                }
            }
            Event::Received(message) => {
                let link = message.connection().to_bits();
                match decode(&message) {
                    Some(letter) => agent.letter(now, link, letter),
                    None => agent.lost(now, link, "it does not speak as this release does"),
                }
            }
            Event::Disconnected { connection, why, .. } => {
                let link = connection.to_bits();
                if self.links.remove(&link).is_some() {
                    agent.lost(now, link, &why.to_string());
                }
                if let Some(endpoint) = &self.endpoint {
                    // Ignore errors: the connection has ended already.
                    let _ = endpoint.disconnect(connection);
                }
            }
            Event::Sent { connection, end: Err(why), .. } => {
                agent.lost(now, connection.to_bits(), &why.to_string())
            }
            Event::DeviceFailed { why } => (self.tell)(&why),
            _ => {}
        }
    }

    /// Carries out the agent's actions.
    fn act(&mut self, agent: &mut Agent) -> Result<(), RunError> {
        while let Some(action) = agent.next_action() {
            match action {
                Action::Announce => self.announce()?,
                Action::Find { after } => self.find(after)?,
                Action::Connect { uri, part, hello } => self.connect(agent, &uri, part, &hello),
                Action::Send(link, letter) => self.send(agent, link, &encode(&letter)),
                Action::Drop(link) => {
                    if let (Some(connection), Some(endpoint)) = (self.links.remove(&link), &self.endpoint) {
                        // Ignore errors: the connection may have ended already.
                        let _ = endpoint.disconnect(connection);
                    }
                }
                Action::Launch(start) => self.launch(agent, &start),
                Action::Reply { rank, reply, thread } => {
                    let bytes = self.sessions[rank as usize].encode(&reply, thread.as_deref());
                    // Other errors mean that the rank has ended, which `Input::Ended` reports.
                    if let Err(error) = self.ranks[rank as usize].answer(&bytes)
                        && error.kind() == std::io::ErrorKind::WouldBlock
                    {
                        agent.nonsense(self.now(), rank, "it does not read answers");
                    }
                }
                Action::Kill => {
                    self.ranks.iter().for_each(|rank| rank.signal(Signal::TERM));
                    self.kill_at = Some(Instant::now() + MERCY);
                }
                Action::KillRank(rank) => {
                    if let Some(rank) = self.ranks.get(rank as usize) {
                        rank.signal(Signal::KILL);
                    }
                }
                Action::Tell(text) => {
                    (self.tell)(&format!("job {}, part {}: {text}", self.options.job, self.options.part));
                }
                Action::Print(lines) => (self.options.print)(lines.is_error, &lines.text),
                Action::Pmix(bytes) => {
                    let passed = self.pmix.as_mut().map_or(Ok(()), |server| server.pass_fence(&bytes));
                    self.check_pmix(agent, passed);
                }
                Action::PmixLost(ranks) => {
                    let told = self.pmix.as_mut().map_or(Ok(()), |server| server.tell_lost(&ranks));
                    self.check_pmix(agent, told);
                }
                Action::Printed => self.gate.leave(),
                Action::Finish(status) => self.finish = Some(status),
            }
        }
        Ok(())
    }

    fn announce(&mut self) -> Result<(), RunError> {
        let Some(endpoint) = &self.endpoint else { return Ok(()) };
        let uri = endpoint.uri();
        match &self.meeting {
            Some(meeting) => self.announced = meeting.announce(&uri).map_err(RunError::System)?,
            None => (self.tell)(&format!(
                "start the other parts with ISTHMUS_RUN_AT='{uri}' in their environment (keep it as you keep a \
                 password: after --at, other users of the host could read it in the list of processes)"
            )),
        }
        Ok(())
    }

    fn find(&mut self, after: Duration) -> Result<(), RunError> {
        let Some(meeting) = self.meeting.clone() else {
            return Err(RunError::Usage("--at is missing".to_owned()));
        };
        let inputs = self.inputs.clone();
        spawn("isthmus-find", move || {
            thread::sleep(after);
            // If the job is over, nobody receives it.
            let _ = inputs.send(Input::Found(meeting.find()));
        })
    }

    fn connect(&mut self, agent: &mut Agent, uri: &str, part: u32, hello: &Hello) {
        let Some(endpoint) = &self.endpoint else { return };
        self.contexts += 1;
        let options = ConnectOptions { timeout: Some(CALL) };
        match endpoint.connect(uri, &encode(hello), Level::Ro, self.contexts, &options) {
            Ok(_) => drop(self.calls.insert(self.contexts, Call::Out(part))),
            Err(error @ (Error::Uri(_) | Error::Unreachable(_) | Error::TooLong { .. })) => {
                agent.refused(self.began.elapsed(), error.to_string());
            }
            Err(error) => agent.not_found(error.to_string()),
        }
    }

    fn send(&self, agent: &mut Agent, link: Link, bytes: &[u8]) {
        let (Some(connection), Some(endpoint)) = (self.links.get(&link), &self.endpoint) else { return };
        let options = SendOptions { silent: true, ..Default::default() };
        loop {
            match endpoint.send(*connection, bytes, &options) {
                Ok(()) => return,
                // Wait for sends in progress to complete.
                Err(Error::Full(_)) => thread::sleep(Duration::from_millis(1)),
                Err(error) => return agent.lost(self.now(), link, &error.to_string()),
            }
        }
    }

    fn check_pmix(&self, agent: &mut Agent, written: std::io::Result<()>) {
        if let Err(error) = written {
            agent.pmix_ended(self.now(), &error.to_string());
        }
    }

    fn launch(&mut self, agent: &mut Agent, start: &Start) {
        if let Some(starter) = &self.options.pmix {
            match Server::start(starter, start, self.options.ranks, &self.inputs) {
                Ok(mut server) => {
                    if self.options.on_loss == OnLoss::Continue
                        && let Err(error) = server.listen(&self.inputs)
                    {
                        (self.tell)(&format!(
                            "ranks that cannot reach each other will wait without end: {error}"
                        ));
                    }
                    self.pmix = Some(server);
                }
                Err(error) => {
                    let why = format!("no PMIx server: {error}");
                    return agent.not_started(self.now(), 0, &why);
                }
            }
        }
        let program = Program {
            starter: &self.options.starter,
            words: &self.options.program,
            variables: &self.options.variables,
            job: &self.options.job,
            parts: self.options.parts,
            label: self.options.label,
            gather: self.options.gather.then_some(&self.gate),
            print: self.options.print,
            output: self.options.output.as_deref(),
            pmix: self.pmix.as_ref().map_or(&[], |server| server.variables.as_slice()),
        };
        if let Some(folder) = program.output
            && let Err(error) = std::fs::create_dir_all(folder)
        {
            return agent.not_started(self.now(), 0, &format!("{}: {error}", folder.display()));
        }
        for rank in 0..self.options.ranks {
            match ranks::start(&program, start, rank, &self.inputs) {
                Ok(process) => {
                    self.ranks.push(process);
                    self.sessions.push(Session::default());
                }
                Err(error) => return agent.not_started(self.now(), rank, &error.to_string()),
            }
        }
    }

    fn close(&mut self) {
        self.announced = Announced::default();
        self.pmix = None;
        if let Some(endpoint) = &self.endpoint {
            endpoint.close();
        }
    }
}
