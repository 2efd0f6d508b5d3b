//! Link options of the library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // The number changes with what compiled programs rely on (`include/isthmus.h`).
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libisthmus.so.0");
    // The I/O thread may still run when a program unloads the library.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
