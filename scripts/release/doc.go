// Command release makes what a release of Lapse consists of, from a commit, not from the working
// tree: static binaries for Linux and macOS, archives with completions, a manual page and the
// licences of all that is linked in, packages for Debian and for RPM, images for containers,
// software bills of materials, a formula for Homebrew, the Helm chart, the packages of the clients
// for npm and pip, and checksums.
//
// A binary is what go install makes of the same version: the commit is packed as the module proxy
// packs it, and go install builds from there, with the flags that docs/install.md names. So a
// stranger can build the same bytes. The version is the tag v1.2.3 of the commit; a commit without
// one has a pseudo-version. Times in archives are those of the commit: two runs make the same
// files.
package main
