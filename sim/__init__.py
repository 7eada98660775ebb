"""The simulator of expert offloading, and the policies that decide it. Never imports torch."""

from sim.process.interrupts import end_commands_quietly

end_commands_quietly()
