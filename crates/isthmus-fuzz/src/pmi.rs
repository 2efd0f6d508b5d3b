//! The PMI commands that ranks send to `isthmus run`.

use isthmus_launch::pmi::{Reply, Session};

/// The start of an MPICH job by PMI-1, one by PMI-2, and a spawn.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let first = "cmd=init pmi_version=1 pmi_subversion=1\ncmd=get_maxes\ncmd=get_appnum\ncmd=get_my_kvsname\n\
                 cmd=get kvsname=k key=PMI_process_mapping\ncmd=put kvsname=k key=-allgather-1-0 value=00ff\\ \n\
                 cmd=barrier_in\ncmd=publish_name service=s port=p\ncmd=abort exitcode=7 message=m\ncmd=finalize\n";
    let framed = |text: &str| format!("{:>6}{text}", text.len());
    let second = ["cmd=init pmi_version=2 pmi_subversion=0\n".to_owned()].into_iter().chain(
        [
            "cmd=fullinit;pmirank=0;threaded=FALSE;",
            "cmd=kvs-put;thrid=0x7f;key=k;value=v;",
            "cmd=info-getnodeattr;key=k;wait=TRUE;",
            "cmd=kvs-fence;",
            "cmd=finalize;",
        ]
        .map(framed),
    );
    let spawn = "mcmd=spawn\nnprocs=1\ntotspawns=2\nspawnssofar=1\nendcmd\nmcmd=spawn\nnprocs=1\nendcmd\n";
    vec![first.into(), second.collect::<String>().into(), spawn.into()]
}

/// The same commands are understood however the bytes are cut. Each answer is one command of its PMI version.
pub(crate) fn property(bytes: &[u8]) {
    let whole = understand(bytes, bytes.len().max(1));
    for piece in [1, 7] {
        let pieces = understand(bytes, piece);
        assert_eq!(whole, pieces, "in pieces of {piece}");
    }
}

/// The commands, and whether an error followed. Its text is left out: it depends on how the bytes were cut.
fn understand(bytes: &[u8], piece: usize) -> (Vec<String>, bool) {
    let (mut session, mut understood) = (Session::default(), Vec::new());
    for piece in bytes.chunks(piece) {
        if session.feed(piece).is_err() {
            return (understood, true);
        }
        loop {
            match session.next_request() {
                Ok(Some(asked)) => {
                    let reply = session.encode(&Reply::Unknown("x".to_owned()), asked.thread.as_deref());
                    let text = String::from_utf8(reply).expect("answers are text");
                    let is_first = text.starts_with("cmd=") && text.ends_with('\n');
                    let framed =
                        text.get(..6).and_then(|len| len.trim().parse().ok()) == Some(text.len() - 6);
                    assert!(is_first || framed, "{text:?}");
                    understood.push(format!("{asked:?}"));
                }
                Ok(None) => break,
                Err(_) => return (understood, true),
            }
        }
    }
    (understood, false)
}
