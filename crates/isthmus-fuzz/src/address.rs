//! Addresses: as bytes, and as text.

use isthmus_wire::Address;

pub(crate) fn sample() -> Address {
    "isthmus://3.7/10.1.2.3:4567#deadbeef".parse().expect("an address")
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let texts = [
        "isthmus://3.7/10.1.2.3:4567#deadbeef",
        "isthmus://0.0/127.0.0.1:9",
        "isthmus://4294967295.1/[fe80::1]:4100#1",
        "isthmus://1.2/[::ffff:10.1.2.3]:4100",
        "isthmus://1.2/[fe80::1%3]:4100",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).chain([sample().to_bytes().to_vec()]).collect()
}

/// An address that parses in one form, bytes or text, is the same address in the other form.
pub(crate) fn property(input: &[u8]) {
    if let Ok(address) = Address::from_bytes(input) {
        assert_eq!(address.to_bytes(), input[..Address::LEN]);
        assert_eq!(Address::from_bytes(&input[..Address::LEN]), Ok(address));
        assert_eq!(address.uri().parse(), Ok(address));
        assert_eq!(address.to_string().parse(), Ok(address.place()));
    }
    let Ok(text) = str::from_utf8(input) else { return };
    if let Ok(address) = text.parse::<Address>() {
        assert_eq!(Address::from_bytes(&address.to_bytes()), Ok(address), "{text}");
        assert_eq!(address.uri().parse(), Ok(address), "{text}");
    }
}
