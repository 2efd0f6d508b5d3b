//! Which certificates two sites believe of each other, by handshakes between them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use isthmus_trust::{Files, Fingerprint, Keygen, Made, Role, Shown, Trust, explain};
use isthmus_wire::AsId;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConnection, Connection, Error, HandshakeKind, ServerConnection};

const ALPN: &[&[u8]] = &[b"test/1"];

struct Sites(tempfile::TempDir);

impl Sites {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn make(&self, as_id: u32, name: &str, role: Option<Role>) -> Made {
        Keygen { as_id, folder: self.path(), name, days: 1 }.make_as(role).expect("made")
    }

    fn certificate(&self, name: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_file(self.path().join(format!("{name}.pem"))).expect("a certificate")
    }

    /// What a side with this certificate shows in a handshake.
    fn shown(&self, name: &str) -> Shown {
        Shown::now(Some(&[self.certificate(name)])).expect("a certificate")
    }

    fn files(&self, name: &str, other: u32) -> Files {
        Files {
            certificate: self.path().join(format!("{name}.pem")),
            key: self.path().join(format!("{name}.key")),
            authorities: vec![self.path().join(format!("as{other}.pem"))],
            denied: None,
        }
    }
}

/// A handshake between two sides, and what each says of it.
fn shake_hands(client: &Trust, server: &Trust) -> [Result<(), Error>; 2] {
    let name = ServerName::try_from("isthmus").expect("a name");
    let mut ends = [
        Connection::from(ClientConnection::new(client.client.clone(), name).expect("a client")),
        Connection::from(ServerConnection::new(server.server.clone()).expect("a server")),
    ];
    let mut said = [Ok(()), Ok(())];
    for _ in 0..8 {
        for from in 0..2 {
            let mut bytes = Vec::new();
            while ends[from].wants_write() {
                ends[from].write_tls(&mut bytes).expect("a vector takes all");
            }
            let mut rest = &bytes[..];
            while !rest.is_empty() && said[1 - from].is_ok() {
                ends[1 - from].read_tls(&mut rest).expect("bytes");
                said[1 - from] = ends[1 - from].process_new_packets().map(drop);
            }
        }
    }
    // A session that is resumed checks no certificate.
    for (end, said) in ends.iter().zip(&said) {
        assert!(
            said.is_err() || end.handshake_kind() == Some(HandshakeKind::Full),
            "{:?}",
            end.handshake_kind()
        );
    }
    said
}

#[test]
fn an_as_that_is_not_admitted_is_refused_though_its_authority_is_known() {
    let sites = Sites::new();
    sites.make(1, "one", None);
    sites.make(2, "two", None);
    let one = Trust::load(&sites.files("one", 2), AsId(1), &[2], ALPN).expect("good");
    for (admits, is_taken) in [(&[][..], false), (&[1], true)] {
        let two = Trust::load(&sites.files("two", 1), AsId(2), admits, ALPN).expect("good");
        // The second time, too: no session is resumed.
        for _ in 0..2 {
            let [_, server] = shake_hands(&one, &two);
            assert_eq!(server.is_ok(), is_taken, "{server:?}");
        }
    }
}

#[test]
fn a_certificate_is_believed_only_as_what_it_says() {
    let sites = Sites::new();
    sites.make(1, "router", Some(Role::Router));
    sites.make(1, "mover", Some(Role::Mover));
    sites.make(1, "any", None);
    sites.make(2, "other", Some(Role::Router));
    let load = |name: &str, role| Trust::load_as(role, &sites.files(name, 2), AsId(1), &[2], ALPN);
    let other = Trust::load_as(Role::Router, &sites.files("other", 1), AsId(2), &[1], ALPN).expect("good");

    // One's own is looked at when it is read.
    let error = load("mover", Role::Router).expect_err("a mover's").to_string();
    assert!(error.contains("that of no router") && error.contains("--role router"), "{error}");
    assert!(load("any", Role::Router).is_ok() && load("router", Role::Router).is_ok());

    // Who shows a mover's as a router's is refused, and told why in words.
    let rogue = Trust::load(&sites.files("mover", 2), AsId(1), &[2], ALPN).expect("no role asked for");
    let [client, server] = shake_hands(&rogue, &other);
    let server = explain(&server.expect_err("refused"));
    assert!(server.contains("that of another role"), "{server}");
    let client = explain(&client.expect_err("told"));
    assert!(client.contains("keygen --role"), "{client}");
    // As a server too.
    let [client, _] = shake_hands(&other, &rogue);
    assert!(explain(&client.expect_err("refused")).contains("that of another role"));
    for name in ["router", "any"] {
        let good = load(name, Role::Router).expect("good");
        assert_eq!(shake_hands(&good, &other), [Ok(()), Ok(())], "{name}");
    }
}

#[test]
fn a_certificate_on_the_deny_list_is_believed_no_more() {
    let sites = Sites::new();
    let lost = sites.make(1, "lost", None);
    sites.make(1, "new", None);
    sites.make(2, "other", None);
    let list = sites.path().join("deny.txt");
    fs::write(&list, format!("# stolen\n{}\n", lost.fingerprint)).expect("written");
    let files = Files { denied: Some(list), ..sites.files("other", 1) };
    let other = Trust::load(&files, AsId(2), &[1], ALPN).expect("good");
    let own = |name: &str| Trust::load(&sites.files(name, 2), AsId(1), &[2], ALPN).expect("good");
    let [client, server] = shake_hands(&own("lost"), &other);
    assert!(explain(&server.expect_err("refused")).contains("deny list here"));
    assert!(explain(&client.expect_err("told")).contains("deny list there"));
    assert_eq!(shake_hands(&own("new"), &other), [Ok(()), Ok(())]);
    let believed = |name: &str| other.believes(&sites.shown(name));
    assert!(!believed("lost") && believed("new"), "also of sessions that began before");
}

/// Nobody shows the authority that signed its certificate: the other side has it.
#[test]
fn an_authority_on_the_deny_list_is_believed_no_more() {
    let sites = Sites::new();
    sites.make(1, "router", None);
    sites.make(2, "other", None);
    let list = sites.path().join("deny.txt");
    let authority = Fingerprint::of(&sites.certificate("as1"));
    fs::write(&list, format!("{authority}\n")).expect("written");
    let own = Trust::load(&sites.files("router", 2), AsId(1), &[2], ALPN).expect("good");
    let shown = sites.shown("router");
    let other = |files: &Files, admits: &[u32]| Trust::load(files, AsId(2), admits, ALPN).expect("good");
    let plain = sites.files("other", 1);
    assert_eq!(shake_hands(&own, &other(&plain, &[1])), [Ok(()), Ok(())]);
    assert!(other(&plain, &[1]).believes(&shown) && !other(&plain, &[]).believes(&shown));
    let denying = other(&Files { denied: Some(list), ..plain }, &[1]);
    let [client, server] = shake_hands(&own, &denying);
    assert!(explain(&server.expect_err("refused")).contains("deny list here"));
    assert!(explain(&client.expect_err("told")).contains("deny list there"));
    assert!(!denying.believes(&shown));
}

#[test]
fn certificate_and_key_in_each_others_place_are_named() {
    let sites = Sites::new();
    sites.make(1, "router", None);
    sites.make(2, "other", None);
    let right = sites.files("router", 2);
    let fault = |certificate: &Path, key: &Path| {
        let files = Files { certificate: certificate.into(), key: key.into(), ..right.clone() };
        Trust::load(&files, AsId(1), &[2], ALPN).map(drop).expect_err("swapped").to_string()
    };
    let error = fault(&right.key, &right.certificate);
    assert!(error.contains("are the two files swapped?"), "{error}");
    // Everybody may read a certificate, so its mode is not the fault.
    fs::set_permissions(&right.certificate, fs::Permissions::from_mode(0o644)).expect("ours");
    let error = fault(&right.certificate, &right.certificate);
    assert!(error.contains("there is a certificate in this file, and no private key"), "{error}");
}

/// What people have from other authorities.
#[test]
fn certificates_and_keys_of_other_forms_are_told_in_words() {
    let sites = Sites::new();
    sites.make(1, "router", None);
    sites.make(2, "other", None);
    let files = sites.files("router", 2);
    let said = || Trust::load(&files, AsId(1), &[2], ALPN).map(drop).expect_err("no trust").to_string();
    let key = fs::read_to_string(&files.key).expect("there");
    for (text, words) in [
        (key.replace("PRIVATE", "ENCRYPTED PRIVATE"), "encrypted with a pass phrase"),
        ("-----BEGIN PRIVATE KEY-----\nMAMCAQA=\n-----END PRIVATE KEY-----\n".to_owned(), "P-256 and P-384"),
    ] {
        fs::write(&files.key, text).expect("ours");
        assert!(said().contains(words), "{}", said());
    }
    fs::write(&files.key, key).expect("ours");

    let names = ["isthmus://as/1", "isthmus://as/2"];
    let mut several = rcgen::CertificateParams::default();
    several.subject_alt_names =
        names.map(|name| rcgen::SanType::URI(name.try_into().expect("a URI"))).to_vec();
    let made = several.self_signed(&rcgen::KeyPair::generate().expect("random")).expect("made");
    fs::write(&files.certificate, made.pem()).expect("ours");
    assert!(said().contains("names several AS's"), "{}", said());
    fs::write(&files.certificate, made.der()).expect("ours");
    assert!(said().contains("openssl x509 -inform der"), "{}", said());
}

#[test]
fn a_key_that_others_can_read_is_refused_with_the_remedy() {
    let sites = Sites::new();
    let made = sites.make(1, "router", None);
    sites.make(2, "other", None);
    let load = || Trust::load(&sites.files("router", 2), AsId(1), &[2], ALPN).map(drop);
    for mode in [0o644, 0o604, 0o602] {
        fs::set_permissions(&made.key, fs::Permissions::from_mode(mode)).expect("ours");
        let error = load().expect_err("others can read it").to_string();
        let command = format!("chmod 600 {}", made.key.display());
        assert!(error.contains(&format!("mode {mode:04o}")) && error.contains(&command), "{error}");
    }
    // A group may read a key of root's, not one that a user has.
    if std::os::unix::fs::chown(&made.key, Some(65_534), None).is_ok() {
        fs::set_permissions(&made.key, fs::Permissions::from_mode(0o640)).expect("ours");
        assert!(load().is_err());
        std::os::unix::fs::chown(&made.key, Some(0), None).expect("root's again");
        assert_eq!(load(), Ok(()));
    }
    for mode in [0o600, 0o400] {
        fs::set_permissions(&made.key, fs::Permissions::from_mode(mode)).expect("ours");
        assert_eq!(load(), Ok(()));
    }
}

/// Errors of files are for people: they name the file, and say what to do.
#[test]
fn files_that_are_cut_off_or_are_no_pair_are_told_in_words() {
    let sites = Sites::new();
    for name in ["one", "two"] {
        sites.make(1, name, None);
    }
    sites.make(2, "other", None);
    let said = |files: &Files| Trust::load(files, AsId(1), &[2], ALPN).expect_err("no trust").to_string();
    let good = sites.files("one", 2);
    assert!(Trust::load(&good, AsId(1), &[2], ALPN).is_ok());

    let text = said(&Files { key: sites.path().join("two.key"), ..sites.files("one", 2) });
    assert!(text.contains("one.pem: ") && text.contains("two.key are no pair"), "{text}");

    for file in [&good.certificate, &good.key, &good.authorities[0]] {
        let whole = fs::read(file).expect("there");
        fs::write(file, &whole[..whole.len() / 2]).expect("written");
        let text = said(&good);
        assert!(text.contains(&file.display().to_string()), "{text}");
        assert!(text.contains("is cut off: it has no line -----END ") && !text.contains('['), "{text}");
        fs::write(file, whole).expect("written");
    }
    fs::write(&good.key, "nothing\n").expect("written");
    assert!(said(&good).contains("there is no private key in this file"), "{}", said(&good));
}

#[test]
fn an_authority_s_next_certificate_accepts_what_the_last_one_signed() {
    let sites = Sites::new();
    let one = sites.make(1, "one", None);
    sites.make(2, "two", None);
    fs::remove_file(&one.authority).expect("there");
    sites.make(1, "next", None);
    let two = Trust::load(&sites.files("two", 1), AsId(2), &[1], ALPN).expect("good");
    for name in ["one", "next"] {
        let one = Trust::load(&sites.files(name, 2), AsId(1), &[2], ALPN).expect("good");
        assert_eq!(shake_hands(&one, &two), [Ok(()), Ok(())], "{name}");
    }

    // With one that has expired, nothing more is signed.
    let mut params = rcgen::CertificateParams::default();
    params.not_after = time::OffsetDateTime::now_utc() - time::Duration::DAY;
    let key = fs::read_to_string(sites.path().join("as1.key")).expect("made");
    let key = rcgen::KeyPair::from_pem(&key).expect("a key");
    fs::write(&one.authority, params.self_signed(&key).expect("signed").pem()).expect("written");
    let late = Keygen { as_id: 1, folder: sites.path(), name: "late", days: 1 };
    let error = late.make().expect_err("it has expired").to_string();
    assert!(error.contains("as1.pem has expired") && error.contains("same key"), "{error}");
    assert!(!sites.path().join("late.key").exists());

    // The next one may stand in the same file as the one that has expired.
    let mut both = fs::read_to_string(&one.authority).expect("written");
    params.not_after = time::OffsetDateTime::now_utc() + time::Duration::HOUR;
    both += &params.self_signed(&key).expect("signed").pem();
    fs::write(&one.authority, both).expect("written");
    let told = Keygen { days: 30, ..late.clone() }.make().expect("one is valid").to_string();
    assert!(told.contains("as1.pem expires on"), "{told}");
}

/// Nobody would accept what another key signs in the authority's name.
#[test]
fn an_authority_without_its_key_signs_nothing() {
    let sites = tempfile::tempdir().expect("a folder");
    let keygen = |as_id, name| Keygen { as_id, folder: sites.path(), name, days: 1 }.make();
    let made = keygen(1, "one").expect("made");
    assert!(!made.to_string().contains("expires on"), "{made}");
    keygen(2, "two").expect("made");
    let key = sites.path().join("as1.key");
    fs::remove_file(&key).expect("removed");
    let error = keygen(1, "next").expect_err("the key is not there").to_string();
    assert!(error.contains("as1.key is not; copy the key"), "{error}");
    assert!(!key.exists() && !sites.path().join("next.pem").exists());
    fs::copy(sites.path().join("as2.key"), &key).expect("copied");
    let error = keygen(1, "next").expect_err("another key").to_string();
    assert!(error.contains("as1.pem is not the certificate of"), "{error}");
    assert!(!sites.path().join("next.pem").exists());
}
