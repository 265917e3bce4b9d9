//! What is shown on a terminal, and not in a pipe.

use std::fs::File;
use std::io::Read;
use std::process::Stdio;

use nix::pty::{Winsize, openpty};

use super::Dir;

#[test]
fn a_bar_is_drawn_on_a_terminal_only() {
    let dir = Dir::new();
    // At that level it takes seconds, and a bar is looked after ten times a second.
    dir.image("a.img", 3000, 0..3000);
    let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    let shown = |line: &str| {
        let terminal = openpty(&size, None).unwrap();
        let mut command = dir.command(line);
        command.env("TERM", "xterm").stderr(Stdio::from(terminal.slave)).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        // The command has the other end of the terminal open, too.
        drop(command);
        let mut master = File::from(terminal.master);
        let mut shown = Vec::new();
        let mut part = [0; 4096];
        // A terminal that nobody has open any more is an error to read from.
        while let Ok(length @ 1..) = master.read(&mut part) {
            shown.extend(&part[..length]);
        }
        assert!(child.wait().unwrap().success());
        String::from_utf8(shown).unwrap()
    };
    let bar = shown("pack a.img -o a.rsz --level 15 --threads 1");
    assert!(bar.contains("pack a.img") && bar.contains("MiB/") && bar.contains('━'), "{bar:?}");
    assert_eq!(shown("pack a.img -o a.rsz --level 1 --force --quiet"), "");
    // In a pipe there is nothing but what was asked for: `good` refuses any other word.
    dir.good("pack a.img -o b.rsz --level 12");
}
