"""Runs the simulator's own policy objects on a device. Never imports simpy."""

from sim.process.interrupts import end_commands_quietly

end_commands_quietly()
