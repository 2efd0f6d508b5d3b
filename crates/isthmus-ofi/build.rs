//! Link options of the provider.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // libfabric closes providers at exit, while our I/O threads may still run.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
