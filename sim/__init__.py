"""Decides and simulates expert offloading. Never imports torch."""

from sim.process.interrupts import end_commands_quietly

end_commands_quietly()
