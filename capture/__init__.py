"""Records what a real Mixture-of-Experts model's gates see and choose. Uses torch and
transformers.
"""

from sim.process.interrupts import end_commands_quietly

end_commands_quietly()
